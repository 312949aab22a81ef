"""Splits the score of a pair over its positions in the background, where that takes long.

If the embedding is an average over positions, the split is exact and costs nothing. For any other embedding, such as
a class token, the last layers of the model run thousands of times. This is done only when a visitor asks for it, for
one visitor at a time, on a trace of its own, so that nobody has to wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch

from gamlens.errors import GamlensError
from gamlens.fuse import at_least_float32
from gamlens.inputs.images import Picture
from gamlens.lens import Lens
from gamlens.methods import BLOCK_DEFAULT
from gamlens.pairs.embedding_parts import pooled_scale
from gamlens.pairs.pair_trace import PairTrace

log = logging.getLogger("gamlens.studio")
_ONE_AT_A_TIME = threading.Semaphore(1)


def splits_at_once(pair: PairTrace, score: str) -> bool:
    """Whether both embeddings of a pair are averages over the last block, so that the score is split without a run."""
    if not pair.blocks:
        return False
    for trace, embedding in zip(pair.sides(score), pair.embeddings, strict=True):
        last, own = trace.activations[pair.blocks[-1]][0], embedding[0].detach()
        if pooled_scale(at_least_float32(last), at_least_float32(own), torch.finfo(own.dtype).eps) is None:
            return False
    return True


class ScoreSplit:
    """The split of one pair's score, which runs in a thread of its own.

    Attributes:
        begun: When the model first ran for it, in seconds of `time.monotonic`; None while it waits for others.
        runs: How many times the model has run for it.
    """

    def __init__(self, lens: Lens, pictures: Sequence[Picture], score: str) -> None:
        self.begun: float | None = None
        self.runs = 0
        self._stopped = threading.Event()
        self._found: Future[PairTrace] = Future()
        # A daemon does not keep the process from ending.
        self._thread = threading.Thread(
            target=self._work, args=(lens, pictures, score), name="split a score", daemon=True
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._found.done()

    @property
    def seconds(self) -> float:
        """For how long it has been running."""
        return 0.0 if self.begun is None else time.monotonic() - self.begun

    def pair(self) -> PairTrace:
        """The trace whose score has been split; waits for it. Raises GamlensError if that failed."""
        return self._found.result()

    def stop(self) -> None:
        """Give up before the next run of the model. It does not wait."""
        self._stopped.set()

    def _work(self, lens: Lens, pictures: Sequence[Picture], score: str) -> None:
        try:
            with _ONE_AT_A_TIME:
                self._found.set_result(self._split(lens, pictures, score))
        except GamlensError as error:
            self._found.set_exception(error)
        except Exception as error:
            log.exception("the score of a pair could not be split")
            self._found.set_exception(GamlensError(f"This failed: {type(error).__name__}: {error}."))

    def _split(self, lens: Lens, pictures: Sequence[Picture], score: str) -> PairTrace:
        self._go_on()
        self.begun = time.monotonic()
        watched = lens.model.register_forward_pre_hook(self._before_a_run)
        try:
            pair = lens.trace_pair(*pictures, n=1, method=BLOCK_DEFAULT).release()
            pair.interactions(score=score)  # the trace keeps the parts
            return pair
        finally:
            watched.remove()

    def _before_a_run(self, module: Any, args: Any) -> None:
        if threading.current_thread() is self._thread:  # not a run for somebody else
            self._go_on()
            self.runs += 1

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise GamlensError("This was stopped.")
