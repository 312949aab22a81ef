"""The device "auto": the best one that this machine has."""

import torch

AUTO = "auto"


def best_device() -> torch.device:
    """A GPU of CUDA if there is one, else Apple's (mps), else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def chosen_device(wanted: str | torch.device, current: torch.device) -> str | torch.device:
    """The device to move a model to: what was asked for, or with "auto" the best one.

    A model that is on a GPU already stays on it with "auto".
    """
    if wanted != AUTO:
        return wanted
    return best_device() if current.type == "cpu" else current
