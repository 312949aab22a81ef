"""The class names that a checkpoint itself holds: its `idx_to_class`, `class_to_idx` or `classes`.

They are a convenience: names that cannot be used are left out with a warning, and the weights are loaded all the same.
"""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from gamlens.errors import warn

MOST_DIGITS = 10  # of the number of a class
ADVICE = "Correct that entry of the file, or give the names in Python: Lens(..., labels=[...])."


class NamedTensors(dict[str, Tensor]):
    """The tensors of a checkpoint by name, and its class names in the order of the classes, () if it has none."""

    class_names: tuple[str, ...] = ()


def class_names_in(found: Mapping[Any, Any], source: str) -> tuple[str, ...]:
    """The class names that a checkpoint's dict holds, in the order of the classes; () if it has none that can be used.

    They are {number: name} as `idx_to_class`, {name: number} as `class_to_idx`, or a list of names as `classes`.
    Numbers may be whole numbers of any type, also text. Something else under these names, such as a number of classes,
    is not read.

    Args:
        found: The dict.
        source: The file, for the warning if classes are not numbered from 0 without gaps.
    """
    for key, turned in (("idx_to_class", False), ("class_to_idx", True)):
        if isinstance(entry := found.get(key), Mapping) and entry:
            pairs = [(name, number) if turned else (number, name) for number, name in entry.items()]
            return _in_order(pairs, key, source)
    entry = found.get("classes")
    if isinstance(entry, list | tuple) and entry and all(isinstance(name, str) for name in entry):
        return _in_order(list(enumerate(entry)), "classes", source)
    return ()


def _in_order(pairs: list[tuple[Any, Any]], key: str, source: str) -> tuple[str, ...]:
    """The names of (number, name) by their numbers; () with a warning that says what is wrong with them."""
    unused = f"The class names in the checkpoint {source!r} are not used: {key!r}"
    numbered = {number: name for given, name in pairs if (number := whole_number(given)) is not None}
    if missing := [number for number in range(len(pairs)) if number not in numbered]:
        warn(
            f"{unused} does not number its {len(pairs)} classes from 0 to {len(pairs) - 1}: class {missing[0]} is "
            f"missing. {ADVICE}"
        )
        return ()
    names = [numbered[number] for number in range(len(pairs))]
    if odd := [name for name in names if not isinstance(name, str) or not name.strip()]:
        warn(f"{unused} has {odd[0]!r}, which is no name. {ADVICE}")
        return ()
    return tuple(names)


def whole_number(given: Any) -> int | None:
    """The whole number that a value of any type is, such as 3, 3.0, "3" or a tensor of 3; None if it is none."""
    if isinstance(given, Tensor):
        given = given.item() if given.numel() == 1 and not given.is_meta else None
    if isinstance(given, str):
        return int(given) if given.isdecimal() and len(given) < MOST_DIGITS else None
    if isinstance(given, Integral):
        return None if isinstance(given, bool) else int(given)
    return int(float(given)) if isinstance(given, Real) and float(given).is_integer() else None


def fitting_names(weights: NamedTensors, state: Mapping[str, Tensor], source: str) -> tuple[str, ...]:
    """The class names of a checkpoint if the network has as many classes; otherwise (), with a warning.

    Args:
        weights: The checkpoint.
        state: The tensors of the network by name, in the order of its layers (its state dict).
        source: The file of the checkpoint, for the warning.
    """
    names, classes = weights.class_names, _classes_of_head(state)
    if names and len(names) != classes:
        warn(
            f"The class names in the checkpoint {source!r} are not used: it names {len(names)} classes, and the last "
            f"layer of the network has {classes} outputs. {ADVICE}"
        )
        return ()
    return names


def _classes_of_head(state: Mapping[str, Tensor]) -> int:
    """How many outputs the last linear layer has, or without a linear layer the last convolution; 0 without both."""
    shapes = [tensor.shape for tensor in state.values() if isinstance(tensor, Tensor) and tensor.ndim >= 2]
    linear = [shape for shape in shapes if len(shape) == 2]
    return int((linear or shapes)[-1][0]) if shapes else 0
