"""Gives freed memory back to the operating system."""

import contextlib
import ctypes
import sys


def return_freed_memory() -> None:
    """Give freed memory back to the operating system where the C library (glibc) can do so; nothing elsewhere.

    glibc keeps what a thread has freed for that thread. Photos are decoded and explained in many threads, so that it
    would keep several times what visits use.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
