"""JSON files that hold one object, read so that no contents can do harm."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_LEVELS = 40  # levels of objects and lists in each other; ours have at most four


def parse_object(contents: bytes) -> dict[str, Any] | str:
    """The object in a JSON text, or a few words that say why there is none."""
    try:
        found = json.loads(contents.decode("utf-8", errors="replace"))
    except RecursionError:
        return "its values are nested too deeply"
    except ValueError:
        return "it is empty" if not contents.strip() else "it is not JSON"
    if not isinstance(found, dict):
        return f"it holds {_kind(found)} where an object belongs"
    return found if _depth(found) <= MOST_LEVELS else "its values are nested too deeply"


def misfit(found: Mapping[str, Any], shape: Mapping[str, Any], path: str = "") -> str:
    """What in an object has another type than `shape` says, such as "'items' is a list"; "" if nothing.

    `shape` is {name: type, or tuple of types, or the shape of an object}. Names that `shape` does not have are free.
    """
    for name, kind in shape.items():
        value, where = found.get(name), f"{path}{name}"
        if name not in found:
            return f"{where!r} is missing"
        if isinstance(kind, Mapping):
            if not isinstance(value, dict):
                return f"{where!r} is {_kind(value)}"
            if inner := misfit(value, kind, f"{where}."):
                return inner
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            return f"{where!r} is {_kind(value)}"
    return ""


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return kinds.get(type(value), "a number")


def _depth(value: Any) -> int:
    """How many objects and lists contain each other, found without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        inside = [part.values() if isinstance(part, dict) else part for part in level if _is_open(part)]
        level = [part for parts in inside for part in parts]
    return depth - 1


def _is_open(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, Sequence) and not isinstance(value, str))
