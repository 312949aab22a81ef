"""Slows down visitors who guess passwords."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

FREE_TRIES, LONGEST_WAIT = 5, 60.0
TRIES_PER_MINUTE, SECONDS_PER_TRY, LONGEST_DELAY = 30, 0.25, 4.0
ADDRESSES_KEPT = 4096
Kept = TypeVar("Kept")


class LoginTry(NamedTuple):
    """What is done with a try to log in: it is refused for `wait` seconds, or answered after `delay` seconds."""

    wait: float = 0.0
    delay: float = 0.0


class LoginThrottle:
    """Counts logins that failed, per address and in all.

    After FREE_TRIES failures an address must wait before the next try, twice as long after each, up to LONGEST_WAIT
    seconds. After more than TRIES_PER_MINUTE failures of all addresses within a minute, tries are answered one after
    the other, with SECONDS_PER_TRY between them, except for addresses from which somebody has logged in before. A try
    counts as a failure until `succeeded`, so that tries sent at once count, too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._recent: deque[float] = deque(maxlen=TRIES_PER_MINUTE + 1)
        self._next_answer = 0.0
        self._lock = threading.Lock()

    def begin(self, address: str) -> LoginTry:
        """Decide about a try of this address and count it."""
        with self._lock:
            now = self._clock()
            count, last = self._failures.get(address, (0, now))
            pause = min(2.0 ** (count - FREE_TRIES), LONGEST_WAIT) if count >= FREE_TRIES else 0.0
            if last + pause > now:
                return LoginTry(wait=last + pause - now)
            many = sum(moment > now - 60 for moment in self._recent) > TRIES_PER_MINUTE
            delay = 0.0
            if many and address not in self._trusted:
                delay = max(self._next_answer - now, 0.0)
                if delay > LONGEST_DELAY:
                    return LoginTry(wait=delay)
                self._next_answer = now + delay + SECONDS_PER_TRY
            _put_last(self._failures, address, (count + 1, now))
            self._recent.append(now)
            return LoginTry(delay=delay)

    def succeeded(self, address: str) -> None:
        with self._lock:
            self._failures.pop(address, None)
            if self._recent:
                self._recent.pop()
            _put_last(self._trusted, address, None)


def _put_last(kept: OrderedDict[str, Kept], address: str, value: Kept) -> None:
    kept[address] = value
    kept.move_to_end(address)
    if len(kept) > ADDRESSES_KEPT:
        kept.popitem(last=False)
