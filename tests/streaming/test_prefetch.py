"""Work done ahead of time: in order, in threads, a bounded number of items."""

from __future__ import annotations

import threading

import pytest

from gamlens.streaming.prefetch import BatchPrefetcher, grouped, prefetch


def test_prefetch_keeps_order_and_passes_errors_on() -> None:
    assert [value for _, value in prefetch(lambda x: x * x, range(20), workers=4)] == [x * x for x in range(20)]
    with pytest.raises(ZeroDivisionError):
        list(prefetch(lambda x: 1 // x, [1, 0, 2], workers=2))
    assert list(grouped(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_a_single_item_needs_no_thread() -> None:
    assert list(prefetch(lambda item: (item, threading.get_ident()), [3])) == [(3, (3, threading.get_ident()))]
    assert all(where != threading.get_ident() for _, where in prefetch(lambda item: threading.get_ident(), [3, 4]))
    assert list(prefetch(abs, [])) == []


def test_batches_come_in_order() -> None:
    with BatchPrefetcher(lambda x: x * x, sum, batch_size=3, workers=4) as batches:
        assert not batches.is_ready
        for item in range(8):
            batches.put(item)
        batches.flush()
        batches.flush()
        assert [batches.take() for _ in range(3)] == [([0, 1, 2], 5), ([3, 4, 5], 50), ([6, 7], 85)]
        assert not batches.waiting


def test_threads_share_a_batch_and_few_batches_wait() -> None:
    """The first batch is there as soon as all threads together can make it."""
    meeting = threading.Barrier(4)
    with BatchPrefetcher(lambda x: meeting.wait(5), list, batch_size=8, workers=4) as batches:
        for item in range(8):
            batches.put(item)
        assert len(batches.take()[1]) == 8
    with BatchPrefetcher(lambda x: x, list, batch_size=2, workers=2) as batches:
        count = 0
        while batches.has_room:
            batches.put(count)
            count += 1
        assert count == 6


def test_what_fails_in_a_thread_is_raised_where_its_batch_is_taken() -> None:
    for fn, made in ((lambda x: 1 // x, list), (lambda x: x, lambda found: 1 // found[0])):
        with BatchPrefetcher(fn, made, batch_size=2, workers=2) as batches:
            for item in (1, 1, 0, 0):
                batches.put(item)
            batches.take()
            with pytest.raises(ZeroDivisionError):
                batches.take()


def test_a_prefetcher_that_is_left_begins_nothing_more() -> None:
    began, ends, done = threading.Event(), threading.Event(), []

    def work(item):
        done.append(item)
        began.set()
        assert ends.wait(5)

    with BatchPrefetcher(work, list, batch_size=8, workers=1) as batches:
        for item in range(16):
            batches.put(item)
        assert began.wait(5)
        threading.Timer(0.02, ends.set).start()
    assert done == [0]
