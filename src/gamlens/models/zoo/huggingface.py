"""Models of Hugging Face transformers, named `hf/ID`: classifiers, backbones and the image half of dual encoders.

An ID is a name on the hub, or a local folder as in `hf/./my-model`. The model's processor says what its input is, and
its config what its labels are.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gamlens.capture.layer_points import OUTPUT
from gamlens.data.reading import import_extra
from gamlens.errors import GamlensError, reworded, warn
from gamlens.models import remote_weights
from gamlens.models.checkpoint import LoadedWeights, NamedWeights, fill, not_named
from gamlens.models.network import Network

HF_PREFIX = "hf/"
ANY_SIZE = "interpolate_pos_encoding"
OFFLINE = "Offline, give hf/FOLDER, with config.json and weights in it; with weights='random' config.json is enough."
SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
HF_WEIGHTS = (*SINGLE_FILES, *(f"{file}.index.json" for file in SINGLE_FILES))


def transformers() -> Any:
    """The package transformers, or an error that says how to install it."""
    return import_extra("transformers", "This model", extra="hf")


class ImageTower(nn.Module):
    """The image half of a dual encoder (CLIP, SigLIP) as a network: images (B,3,H,W) -> embeddings (B,D).

    Its modules are those of the dual encoder, not copies. The text half is not among them.
    """

    dual: Any

    def __init__(self, dual: Any) -> None:
        super().__init__()
        object.__setattr__(self, "dual", dual)  # not as a submodule, or the text half would be one, too
        for name, child in dual.named_children():
            if "text" not in name:
                self.add_module(name, child)
        self.train(dual.training)

    def forward(self, images: Tensor) -> Tensor:
        options = any_size(self.dual.get_image_features, self.dual.config, images)
        return vector(self.dual.get_image_features(pixel_values=images, **options))


def build(name: str, weights: LoadedWeights = None) -> Network:
    """A model of the hub or of a folder, with the input of its processor and the labels of its config."""
    if isinstance(weights, NamedWeights):
        raise not_named(name, weights)
    package, place = transformers(), name.removeprefix(HF_PREFIX)
    here = {"local_files_only": _must_read_copy(name, place, weights)}
    try:
        config = package.AutoConfig.from_pretrained(place, **here)
        make = _maker(package, config)
        missing: list[str] = []
        if weights is not None:
            module = make.from_config(config) if hasattr(make, "from_config") else make(config)
        else:
            module, report = make.from_pretrained(place, output_loading_info=True, **here)
            missing = sorted(report["missing_keys"])
    except (OSError, ValueError, ImportError) as error:
        raise GamlensError(
            f"{name} could not be loaded ({type(error).__name__}: {str(error).splitlines()[0]}). Give an ID of the "
            f"hub. {OFFLINE}"
        ) from error
    if isinstance(weights, dict):
        fill(module, weights, source=f"given for {name!r}")
    if heads := [key for key in missing if "pooler" not in key]:
        warn(f"The checkpoint of {name} has no weights for {', '.join(heads[:4])}: these layers are random.")
    network = replace(adopt(module.eval()), name=name, weights=place)
    if any("pooler" in key for key in missing):
        network = replace(network, output=_class_token)
    network = replace(network, **_processor(package, place, network, here))
    if isinstance(network.module, ImageTower):
        return replace(network, text=_text(package, place, module, here))
    if ANY_SIZE in inspect.signature(module.forward).parameters:
        module.register_forward_pre_hook(_interpolate, with_kwargs=True)
    return network


def _must_read_copy(name: str, place: str, weights: LoadedWeights) -> bool:
    """Whether only files of this machine may be read, because the hub cannot be reached or must not be asked."""
    if Path(place).is_dir():
        return not remote_weights.downloads_allowed()
    hub = import_extra("huggingface_hub", "This model", extra="hf")
    try:
        hub.utils.validate_repo_id(place.partition("@")[0])
    except ValueError as error:
        raise GamlensError(
            f"{name} could not be loaded: there is no folder {place!r}, and it is no ID of the hub (OWNER/NAME)."
        ) from error
    config = remote_weights.on_hub(name, place, ("config.json",), instead=OFFLINE)
    stored = remote_weights.on_hub(name, place, HF_WEIGHTS, instead=OFFLINE)
    return remote_weights.must_read_copy(config if weights is not None or config.file is None else stored)


def adopt(module: Any) -> Network:
    """A module of transformers as a Network; of a dual encoder, its image half."""
    config = module.config
    dual = hasattr(module, "get_image_features") and hasattr(module, "get_text_features")
    names = getattr(config, "id2label", None) or {}
    labels = tuple(str(names[number]) for number in sorted(names))
    side = _side(config)
    return Network(
        ImageTower(module) if dual else module,
        type(module).__name__,
        "given",
        size=side or (224, 224),
        short=min(side or (256, 256)),
        labels=() if dual or all(label.startswith("LABEL_") for label in labels) else labels,
        multi_label=getattr(config, "problem_type", None) == "multi_label_classification",
        output=None if dual else vector,
        embedding=OUTPUT if dual else None,
    )


def is_ours(module: nn.Module) -> bool:
    """Whether a module is a model of transformers; the package is not imported for this."""
    return hasattr(getattr(module, "config", None), "model_type") and hasattr(module, "main_input_name")


def vector(output: Any) -> Tensor:
    """The class scores or embeddings, one vector per image (B,D), in what a model of transformers returns."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "image_embeds", "text_embeds", "pooler_output", "feature_maps", "last_hidden_state"):
        found = getattr(output, name, None)
        found = found[-1] if isinstance(found, list | tuple) else found
        if isinstance(found, Tensor):
            return found if found.ndim == 2 else _pooled(found)
    raise GamlensError(
        f"The model returns a {type(output).__name__}, in which no class scores or embedding are found: say which "
        "part they are, such as output='logits'."
    )


def _pooled(found: Tensor) -> Tensor:
    """The mean over positions: (B,C,h,w) or (B,N,C) -> (B,C)."""
    return found.mean(dim=(2, 3)) if found.ndim == 4 else found.mean(dim=1)


def _class_token(output: Any) -> Tensor:
    """The first token (B,C), the embedding of a model whose checkpoint has no pooler."""
    tokens: Tensor = output.last_hidden_state
    return tokens[:, 0] if tokens.ndim == 3 else _pooled(tokens)


def any_size(call: Any, config: Any, images: Tensor) -> dict[str, bool]:
    """The option that lets `call` take images of another size than the config's; {} where it is not needed or known."""
    usual = _side(config)
    other = usual is not None and tuple(images.shape[-2:]) != usual
    return {ANY_SIZE: True} if other and ANY_SIZE in inspect.signature(call).parameters else {}


def _interpolate(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A forward pre-hook that adds the option of `any_size` to the call if the images have another size."""
    images = args[0] if args else kwargs.get("pixel_values")
    more = any_size(module.forward, module.config, images) if isinstance(images, Tensor) else {}
    return args, {**more, **kwargs}


def _maker(package: Any, config: Any) -> Any:
    """The class of transformers that builds the model of a config: a classifier, a backbone, or any other model."""
    architecture = (getattr(config, "architectures", None) or [""])[0]
    if architecture.endswith("ForImageClassification"):
        return package.AutoModelForImageClassification
    backbone = architecture.endswith("Backbone") and hasattr(package, architecture)
    return getattr(package, architecture) if backbone else package.AutoModel


def _side(config: Any) -> tuple[int, int] | None:
    """Height and width of the input as the config says; of a dual encoder, the input of its image half."""
    return _pair(getattr(getattr(config, "vision_config", config), "image_size", None))


def _processor(package: Any, place: str, network: Network, here: Mapping[str, bool]) -> dict[str, Any]:
    """Size, short side, mean and std of the input as the image processor says; {} and a warning where there is none."""
    try:
        found = package.AutoImageProcessor.from_pretrained(place, **here)
    except (OSError, ValueError, ImportError, KeyError):
        warn(f"hf/{place} has no image processor: ImageNet's mean and std are assumed. Give transform= for others.")
        return {}
    crop = getattr(found, "crop_size", None) if getattr(found, "do_center_crop", False) else None
    size = _pair(crop) or _pair(getattr(found, "size", None)) or network.size
    short = min(_pair(getattr(found, "size", None)) or size)
    result: dict[str, Any] = {"size": size, "short": max(short, *size)}
    if getattr(found, "do_normalize", True) and getattr(found, "image_mean", None) is not None:
        result |= {"mean": tuple(map(float, found.image_mean)), "std": tuple(map(float, found.image_std))}
    elif not getattr(found, "do_normalize", True):
        result |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    return result


def _pair(size: Any) -> tuple[int, int] | None:
    """(height, width) of a size that is one number or two, or that names both sides or the shortest one."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Sequence) and len(size) == 2:
        return int(size[0]), int(size[1])
    keys = ("height", "width", "shortest_edge")
    height, width, edge = (size.get(key) if isinstance(size, Mapping) else getattr(size, key, None) for key in keys)
    if height and width:
        return int(height), int(width)
    return (int(edge), int(edge)) if edge else None


def _text(package: Any, place: str, dual: Any, here: Mapping[str, bool]) -> Callable[[Sequence[str]], Tensor]:
    """The text half as a function: captions -> embeddings (T,D). The tokenizer is loaded at the first call."""

    @cache
    def tokenizer() -> Any:
        what = f"hf/{place} has no tokenizer, so captions cannot be read"
        with reworded(what, OSError, ValueError, ImportError, KeyError):
            return package.AutoTokenizer.from_pretrained(place, **here)

    def encode(captions: Sequence[str]) -> Tensor:
        padding = "max_length" if dual.config.model_type.startswith("siglip") else True
        longest = getattr(dual.config.text_config, "max_position_embeddings", None)
        batch = tokenizer()(list(captions), return_tensors="pt", truncation=True, max_length=longest, padding=padding)
        device = next(dual.parameters()).device
        with torch.no_grad():
            return vector(dual.get_text_features(**{key: value.to(device) for key, value in batch.items()}))

    return encode
