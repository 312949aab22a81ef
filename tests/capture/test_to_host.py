"""Tensors on their way to the host."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gamlens.capture import nonblocking


def test_what_is_on_the_cpu_stays_as_it_is() -> None:
    tensors = [torch.rand(2, 3), torch.arange(4)]
    assert all(there is here for there, here in zip(nonblocking.to_host(tensors)(), tensors, strict=True))


def test_a_copy_of_ones_own() -> None:
    """Not the pinned memory, which is used again."""
    for given in (torch.rand(2, 3, 4), torch.tensor([True, False]), torch.arange(3)):
        copy = nonblocking.unpinned_copy(given)
        assert torch.equal(copy, given)
        assert copy.dtype == given.dtype
        assert copy.data_ptr() != given.data_ptr()


@pytest.mark.parametrize("pool", [None, ThreadPoolExecutor(1)])
def test_one_wait_for_all_and_before_the_copies(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    """The way from a GPU with its parts replaced: values are read after the wait, not before it."""
    given, rooms, waits = [torch.zeros(2), torch.zeros(3)], [], []

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking

        def record(self, stream: object) -> None:
            assert len(rooms) == 2

        def synchronize(self) -> None:
            waits.append(1)
            for room in rooms:
                room.fill_(7)

    def room(tensor: torch.Tensor) -> torch.Tensor:
        rooms.append(torch.empty_like(tensor))
        return rooms[-1]

    monkeypatch.setattr(nonblocking, "_pinned", room)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(nonblocking, "_is_cuda", lambda tensor: True)
    found = nonblocking.to_host(given, pool)()
    assert [tensor.tolist() for tensor in found] == [[7, 7], [7, 7, 7]]
    assert len(waits) == 1
    rooms[0].fill_(9)
    assert found[0].tolist() == [7, 7]
