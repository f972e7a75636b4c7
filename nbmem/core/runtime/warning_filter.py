"""Suppress the warnings that nbmem's own work causes.

They are not shown, raised or recorded.

`warnings.catch_warnings` would do this for all threads at once, and make Python forget which of the
user's warnings were already shown. The filter here applies only to the thread that enters it. It
precedes the user's filters while nbmem works, and ignored warnings enter no registry.

An interrupt may come when a block has ended, before its `__exit__` has. So the filter applies only
while the function with the block is running.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class _Thread(threading.local):
    """The code of the innermost suppressing block in a thread, or None."""

    code: CodeType | None = None


class _InsideOwnWork:
    """A message pattern that matches inside nbmem's own work.

    It replaces the regular expression that `warnings` expects. It matches if its thread is in a
    block.
    """

    def match(self, _text: str) -> bool:
        """Return whether the function with the block is running."""
        code = _thread.code
        frame: FrameType | None = None if code is None else sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None


class _ButResources(type):
    """A metaclass that makes every category but ResourceWarning a subclass.

    A collection during nbmem's work may warn about files that the user has not closed.
    """

    def __subclasscheck__(cls, category: type) -> bool:
        return not issubclass(category, ResourceWarning)


class _OwnWarning(Warning, metaclass=_ButResources):
    """The category of the filter."""


_thread = _Thread()
_FILTER: Any = ("ignore", _InsideOwnWork(), _OwnWarning, None, 0)
_filters: Callable[[], Any] = getattr(warnings, "_get_filters", lambda: warnings.filters)
"""Return the filter list that applies to this thread: since Python 3.14 a context's."""


class suppress_warnings:  # noqa: N801 - used as contextlib.suppress is
    """Ignore the warnings of a block of nbmem's own work, in this thread.

    It surrounds every call of nbmem by foreign code, so it does not use `contextlib`.

    Args:
        outer: How many callers further out the function is that runs as long as the block.
    """

    __slots__ = ("_before", "_list", "_outer")

    def __init__(self, outer: int = 0) -> None:
        self._outer = outer

    def __enter__(self) -> None:
        self._list = filters = _filters()
        filters.insert(0, _FILTER)
        self._before = _thread.code
        _thread.code = sys._getframe(1 + self._outer).f_code  # noqa: SLF001 - as in `entry`

    def __exit__(self, *_error: object) -> None:
        _thread.code = self._before
        filters = self._list
        if filters and filters[0] is _FILTER:
            del filters[0]
        elif _FILTER in filters:  # code that nbmem called has left one before it
            filters.remove(_FILTER)


class pass_warnings:  # noqa: N801 - as above
    """A block in which the user's warning filters apply again.

    It also works inside `suppress_warnings`.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _thread.code = _thread.code, None

    def __exit__(self, *_error: object) -> None:
        _thread.code = self._before
