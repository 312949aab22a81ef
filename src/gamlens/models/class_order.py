"""The class names that a checkpoint itself holds: its `idx_to_class`, `class_to_idx` or `classes`."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gamlens.errors import GamlensError

MOST_DIGITS = 10  # of the number of a class
TODO = "Correct that entry of the file, remove it, or give the names in Python: Lens(..., labels=[...])."


class NamedTensors(dict[str, Tensor]):
    """The tensors of a checkpoint by name, and its class names in the order of the classes, () if it has none."""

    class_names: tuple[str, ...] = ()


def class_names_in(found: Mapping[Any, Any], source: str) -> tuple[str, ...]:
    """The class names that a checkpoint's dict holds, in the order of the classes; () if it has none.

    They are {number: name} as `idx_to_class`, {name: number} as `class_to_idx`, or a list of names as `classes`.
    Numbers may be written as text. Something else under these names, such as a number of classes, is not read.

    Args:
        found: The dict.
        source: The file, for the error if classes are not numbered from 0 without gaps.
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
    """The names of (number, name) by their numbers, or an error that says what is wrong with them."""
    wrong = f"The checkpoint {source!r} has class names as {key!r}"
    written = [(str(number), name) for number, name in pairs]
    numbered = {int(text): name for text, name in written if text.isdecimal() and len(text) < MOST_DIGITS}
    if missing := [number for number in range(len(pairs)) if number not in numbered]:
        raise GamlensError(
            f"{wrong}, which does not number its {len(pairs)} classes from 0 to {len(pairs) - 1}: class {missing[0]} "
            f"is missing. {TODO}"
        )
    names = [numbered[number] for number in range(len(pairs))]
    if odd := [name for name in names if not isinstance(name, str) or not name.strip()]:
        raise GamlensError(f"{wrong}, and {odd[0]!r} is no name. {TODO}")
    return tuple(names)


def check_count(weights: Mapping[str, Tensor], classes: int, model: str) -> None:
    """Raise a GamlensError if a checkpoint has class names, and not as many as its network has classes."""
    count = len(getattr(weights, "class_names", ()))
    if count and count != classes:
        raise GamlensError(
            f"The checkpoint that was given for {model!r} has the names of {count} classes and weights for {classes}. "
            f"{TODO}"
        )


def check_some_head(weights: NamedTensors, source: str) -> None:
    """Raise a GamlensError if a checkpoint has class names, and no tensor of it has as many rows."""
    count = len(weights.class_names)
    if count and not any(tensor.ndim and tensor.shape[0] == count for tensor in weights.values()):
        raise GamlensError(
            f"The checkpoint {source!r} has the names of {count} classes, and no layer with {count} outputs. {TODO}"
        )
