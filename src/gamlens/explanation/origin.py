"""Origin: which lens made a result, and by which options, so that its images can be explained again in other ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gamlens.errors import GamlensError

if TYPE_CHECKING:
    from gamlens.explanation.result import Explanation
    from gamlens.lens import Lens
    from gamlens.pairs.pair_trace import PairTrace
    from gamlens.trace import Trace

SAME_SCORE = 0.01  # how far the score of the same image may be off in another batch, relative to the scores of classes


@dataclass(frozen=True, eq=False)
class Origin:
    """The lens that made a result, and the options of the call. Nothing of the forward is kept.

    Attributes:
        lens: The lens.
        scored: What is explained: the options `score` and, for classes, `temperature`.
        made: How maps are made: the options `fuse`, `lattice` and `sign`.
        against: The class that the explained one is compared with; None if there is none.
    """

    lens: Lens
    scored: Mapping[str, Any]
    made: Mapping[str, Any]
    against: Any = None

    def trace_rows(self, rows: Sequence[Explanation], method: str) -> Trace | PairTrace:
        """Run one forward, with all blocks, and one backward of what `explain` is given: a trace without a graph.

        Args:
            rows: One result of this lens for a class, with one row; those of both sides for a pair.
            method: As `Lens.trace` takes it.

        Raises:
            GamlensError: If the lens prepares the image in another way than it was, or the score is another one now.
        """
        asked: dict[str, Any] = {"n": None, "method": method, "views": _views(rows[0])}
        if len(rows) > 1:
            x, y = ([side.picture()] for side in rows)
            pair = self.lens.trace_pair(x, y, **asked)
            _check_same(rows, pair.sides(self.scored["score"], keep=False))
            return pair.release()
        target = int(rows[0].targets[0])
        wanted = None if target < 0 else [target]  # a callable score has no target
        keep = self.against is not None
        trace = self.lens.trace([rows[0].picture()], wanted, keep_graph=keep, **asked, **self.scored)
        trace = trace.contrast(wanted, self.against) if keep else trace
        _check_same(rows, [trace])
        return trace.release()

    def explain(
        self, rows: Sequence[Explanation], trace: Trace | PairTrace, method: str, n: int, refine: Any
    ) -> tuple[Explanation, ...]:
        """Make the maps of a trace by another method, number of blocks or refinement. No forward is run.

        Args:
            rows: What was traced: the row of a class, or both sides of a pair.
            trace: What `trace_rows` gave for them.
            method, n, refine: As `Trace.explain` takes them.

        Returns:
            One Explanation per image, with one row each.
        """
        fusion = self.made["fuse"]
        if not isinstance(fusion, str) and len(fusion) != n:  # weights for another number of blocks
            fusion = "mean"
        options: dict[str, Any] = {**self.made, "refine": refine, "fuse": fusion}
        if len(rows) > 1:
            options["score"] = self.scored["score"]
        made: Any = trace.explain(method, n, **options)
        return (made.x, made.y) if len(rows) > 1 else (made,)


def _check_same(rows: Sequence[Explanation], traces: Sequence[Trace]) -> None:
    """Check that traces are of the images and the score of a result: a file may be another photo by now."""
    if any(row.frames != trace.provenance.frames for row, trace in zip(rows, traces, strict=True)):
        raise GamlensError(
            "This image was prepared in another way than the lens prepares it, so it cannot be explained again from "
            "here: call the lens with the method that you want."
        )
    row, trace = rows[0], traces[0]
    found, wanted = float(trace.scores[0]), float(row.scores[0])
    scale = 1.0 if trace.output is None else float(trace.output.abs().max())
    if abs(found - wanted) > SAME_SCORE * max(scale, abs(found), abs(wanted)):
        raise GamlensError(
            f"The score was {wanted:.4g} and is {found:.4g} now: the image, or the model, has changed since. Call the "
            "lens again."
        )


def _views(row: Explanation) -> tuple[str | float, ...]:
    """The option `views` of the call that made a result."""
    views = row.about.get("views", {"scales": [1.0], "mirrored": False})
    return (*views["scales"][1:], *(("flip",) if views["mirrored"] else ()))
