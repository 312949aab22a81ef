"""Explainers that a user wrote: a function of this process, or one in a Python file (`my_file.py:explain`)."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gamlens.capture.guard import unwrap
from gamlens.errors import GamlensError, near, reworded
from gamlens.evaluation.explainers.checked_maps import checked_maps, size_of
from gamlens.evaluation.explainers.explainer import BoundExplainer, ClassFunction, Explainer, PairFunction
from gamlens.evaluation.explainers.explainer_specs import IN_PYTHON, ExplainerSpec, take_options
from gamlens.evaluation.explainers.held_model import left_as_it_was
from gamlens.evaluation.explainers.network_parts import Embedder, for_model
from gamlens.lens import Lens
from gamlens.scores import PairScoreFunction

OUR_CODE = str(Path(__file__).resolve().parents[2])  # the folder of gamlens: lines in it are not the user's
CLASS_PARAMETERS, PAIR_PARAMETERS = "(model, batch, targets)", "(model, x, y, score)"


def external(
    explain: ClassFunction | PairFunction | None = None,
    *,
    pairs: PairFunction | None = None,
    name: str | None = None,
    title: str | None = None,
    source: str = "",
) -> Explainer:
    """Make an explainer of the user's own functions, to be measured beside the methods of gamlens.

    Args:
        explain: (model, batch, targets) -> maps. `model` is the module of the lens, `batch` (B,C,H,W) its input,
            `targets` (B,) the classes; maps are (B,H,W), a tensor or an array of any range. A function with four
            parameters is taken for `pairs`.
        pairs: (model, x, y, score) -> maps of x, maps of y. Here `model` is a module that returns embeddings (P,D), and
            `score` gives the similarity (P,) of two sets of them. The network itself is `model.network`.
        name: What results call it, after "python:"; by default the name of the function.
        title: Its name in tables; by default `name`.
        source: What made the maps, for the record of a run, which is not continued with another one. By default the
            sha256 of the functions' code, where Python can read it.

    Example:
        >>> def brightness(model, batch, targets):
        ...     return batch.mean(dim=1)
        >>> external(brightness).title
        'brightness'
    """
    of_classes: Any = explain
    if explain is not None and _explains_pairs(explain, name or _name_of(explain)):
        if pairs is not None:
            raise GamlensError(
                f"{name or _name_of(explain)!r} and pairs= both take {PAIR_PARAMETERS}: give the first one the "
                f"parameters {CLASS_PARAMETERS}, or leave one of them out."
            )
        of_classes, pairs = None, of_classes
    chosen = of_classes or pairs
    if chosen is None:
        raise GamlensError(
            f"external() needs a function: give {CLASS_PARAMETERS} -> maps, or pairs={PAIR_PARAMETERS} -> two maps."
        )
    short, source = name or _name_of(chosen), source or _code_hash(of_classes, pairs)
    return _explainer(f"{IN_PYTHON}:{short}", title or short, source, of_classes, pairs)


@contextmanager
def _located(name: str) -> Iterator[None]:
    """Turn an exception of the user's function into a GamlensError that says where it was raised."""
    try:
        yield
    except GamlensError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            frame
            for frame in frames
            if "site-packages" not in frame.filename and not frame.filename.startswith(OUR_CODE)
        ]
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        raise GamlensError(f"{name!r} failed: {type(error).__name__}: {error}{where}") from error


def _code_hash(*functions: Any) -> str:
    """The sha256 of the source code of functions; "" if it cannot be read, as in some consoles."""
    try:
        texts = [inspect.getsource(one) for one in functions if one is not None]
    except (OSError, TypeError):
        return ""
    return f"sha256 {hashlib.sha256(''.join(texts).encode()).hexdigest()}"


def file_explainer(spec: ExplainerSpec) -> Explainer:
    """The explainer that `file.py:function` names; `file.py:explain+explain_pair` names two, for classes and pairs.

    The file is run as Python, as if it were imported: give only files that you trust.
    """
    take_options(spec, {})
    functions: dict[bool, Any] = {}
    file = Path(spec.package)
    for name, function in _functions(file, spec.entry.split("+"), spec.text).items():
        of_pairs = _explains_pairs(function, f"{spec.package}:{name}")
        if of_pairs in functions:
            raise GamlensError(
                f"Both functions of {spec.text!r} take {PAIR_PARAMETERS if of_pairs else CLASS_PARAMETERS}: name one "
                f"with {CLASS_PARAMETERS} and one with {PAIR_PARAMETERS}."
            )
        functions[of_pairs] = function
    source = f"sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"
    return _explainer(spec.text, spec.title, source, functions.get(False), functions.get(True))


def _functions(file: Path, names: list[str], text: str) -> dict[str, Callable[..., Any]]:
    """Run a Python file and return the functions of these names."""
    if not file.is_file():
        raise GamlensError(f"There is no file {str(file)!r} to take the explainer from: write PATH.py:FUNCTION.")
    place = importlib.util.spec_from_file_location(f"gamlens_explainer_{file.stem}", file)
    assert place is not None  # true of every path that ends in .py
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules[place.name] = module
    folder = str(file.parent.resolve())
    sys.path.insert(0, folder)
    try:
        with reworded(f"{text!r}: the file failed"):
            place.loader.exec_module(module)
    except SystemExit as error:
        raise GamlensError(
            f"{str(file)!r} called sys.exit({error.code!r}): run what belongs to a program only under "
            "if __name__ == '__main__'."
        ) from error
    finally:
        sys.path.remove(folder)
    for name in names:
        if not callable(getattr(module, name, None)):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise GamlensError(f"{str(file)!r} has no function {name!r}: {near(name, known)}")
    return {name: getattr(module, name) for name in names}


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _explains_pairs(function: Callable[..., Any], name: str) -> bool:
    """Whether a function explains pairs, by its parameters: 4, or the fourth is `score`; for classes it has 3."""
    if not callable(function):
        raise GamlensError(f"An explainer is a function {CLASS_PARAMETERS}; found {function!r:.80}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function that is not written in Python
        return False
    places = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    if any(item.kind == item.VAR_POSITIONAL for item in parameters):
        return False
    needed = sum(item.default is item.empty for item in places)
    if needed == 4 or (needed < 4 <= len(places) and places[3].name == "score"):
        return True
    if needed <= 3 <= len(places):
        return False
    raise GamlensError(
        f"{name!r} takes {len(places)} parameters: {CLASS_PARAMETERS} for classes, or {PAIR_PARAMETERS} for pairs."
    )


def _explainer(
    name: str, title: str, source: str, explain: ClassFunction | None, pairs: PairFunction | None
) -> Explainer:
    return Explainer(
        name=name,
        title=title,
        bind=partial(_bind, name, explain, pairs),
        source=source,
        classes=explain is not None,
        pairs=pairs is not None,
    )


def _bind(name: str, explain: ClassFunction | None, pairs: PairFunction | None, lens: Lens) -> BoundExplainer:
    def classify(batch: Tensor, targets: Tensor) -> Tensor:
        assert explain is not None
        images = for_model(lens, batch)
        with _located(name), left_as_it_was(unwrap(lens.model)):
            found = explain(unwrap(lens.model), images, targets.to(images.device, copy=True))
        return checked_maps(found, len(batch), size_of(batch), name=name, device=lens.device)

    def compare(x: Tensor, y: Tensor, score: PairScoreFunction) -> tuple[Tensor, Tensor]:
        assert pairs is not None
        with _located(name), left_as_it_was(unwrap(lens.model)):
            both = for_model(lens, x), for_model(lens, y)
            found = pairs(Embedder(lens, both[0]), *both, score)
        if not isinstance(found, list | tuple) or len(found) != 2:
            raise GamlensError(
                f"{name!r} returned {type(found).__name__}: let it return two sets of maps, those of x and those of y."
            )
        first, second = (
            checked_maps(maps, len(side), size_of(side), name=name, device=lens.device)
            for maps, side in zip(found, (x, y), strict=True)
        )
        return first, second

    return BoundExplainer(classify if explain is not None else None, compare if pairs is not None else None)
