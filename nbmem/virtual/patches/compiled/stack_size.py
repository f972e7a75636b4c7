"""Reserve space on Python's own stack for deep calls.

Without it, calls may map and unmap memory at each call. CPython (from 3.11 on) stores a thread's
frames in chunks of 16 KiB, without a spare one. At the depth where a chunk ends, each call takes a
page from the system and gives it back.

`push_chunk` and `_PyThreadState_PopFrame` in
https://github.com/python/cpython/blob/v3.13.0/Python/pystate.c
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")
_SLOTS = 1 << 16
"""Half a MiB for a frame of 8-byte slots: the chunk that holds it is twice as large."""


def _run(work: Callable[[], Any]) -> Any:
    return work()


_run_in_large_frame = FunctionType(_run.__code__.replace(co_stacksize=_SLOTS), globals())


def with_large_stack(work: Callable[[], T]) -> T:
    """Return the result of `work`, called in a large stack frame.

    The calls in it share one piece of the stack, some thousand deep.
    """
    found: T = _run_in_large_frame(work)
    return found
