"""Read the variables of functions that run a training loop.

They are read in the loop's own thread, while it runs. A loop in a function has no names left when
the cell ends. So they are read while the loop waits for torch, a few times for each call site.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

from nbmem.capture.interpreter.class_kinds import FOREIGN
from nbmem.capture.interpreter.main_thread import is_foreign
from nbmem.capture.interpreter.object_members import is_optimized, locals_of
from nbmem.capture.interpreter.roots import module_of
from nbmem.capture.tensors.tensor_paths import Budget, reachable_tensors
from nbmem.core.session.tensor_names import LOCAL

MAX_SITES, LOOKS = 64, 3
"""Places in the code at which variables are read, and how often at each."""
CALLERS = 3
"""Frames that identify a place: an agent's method plays and learns, with other tensors."""
MAX_FUNCTIONS, OUTER = 12, 4
"""Functions whose variables are read: the innermost, and the program's own outside a library's."""
_NOT_THE_LOOPS = frozenset(
    (*FOREIGN, "torch", "nbmem", "asyncio", "threading", "runpy", "nbclient")
)


class CallSites:
    """Places in training loops that called torch, with call counts."""

    def __init__(self) -> None:
        self._times: Counter[tuple[tuple[int, int], ...]] = Counter()

    def is_new(self) -> bool:
        """Count a call from this thread's loop; return True while it is new.

        It is new for the first `LOOKS` calls from the same place.
        """
        frames = islice(_outwards(), CALLERS)
        site = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        if not site:
            return False
        if site not in self._times and len(self._times) >= MAX_SITES:
            return False
        self._times[site] += 1
        return self._times[site] <= LOOKS


def caller_variables() -> list[tuple[str, Mapping[str, Any]]]:
    """List the variables of the calling functions, innermost first.

    Each has the suffix for its names: ` of train()`, or an empty text for a module's globals. A
    library's trainer may be called through dozens of its own functions. Those are then skipped.
    """
    found: list[tuple[str, Mapping[str, Any]]] = []
    for frame in _outwards():
        if len(found) >= MAX_FUNCTIONS and is_foreign(frame.f_code.co_filename):
            continue
        if is_optimized(frame):
            found.append((f" of {frame.f_code.co_name}()", locals_of(frame)))
        elif not any(names is frame.f_globals for _, names in found):
            found.append(("", frame.f_globals))
        if len(found) >= MAX_FUNCTIONS + OUTER:
            break
    return found


def traceback_variables(error: BaseException | None) -> list[tuple[str, Mapping[str, Any]]]:
    """List the variables of the functions that an error has ended.

    They have the form and the order of `caller_variables`.
    """
    found: list[tuple[str, Mapping[str, Any]]] = []
    at = None if error is None else error.__traceback__
    while at is not None:
        frame = at.tb_frame
        if is_optimized(frame) and module_of(frame) not in _NOT_THE_LOOPS:
            found.insert(0, (f" of {frame.f_code.co_name}()", locals_of(frame)))
        at = at.tb_next
    return found[-MAX_FUNCTIONS:]


def report_modules(
    functions: Sequence[tuple[str, Mapping[str, Any]]], report: Callable[[str, Any], None]
) -> None:
    """Report every module that functions' variables lead to.

    The path is like `local agent.net of main()`.
    """
    shares = Budget().shares(len(functions))
    for (where, local), share in zip(functions, shares, strict=True):
        named = [(f"{LOCAL}{name}", value) for name, value in local.items()]
        for _ in reachable_tensors(named, share, module=partial(with_place, report, where)):
            pass


def with_place(report: Callable[[str, Any], None], where: str, way: str, module: Any) -> None:
    """Report a module with the function whose variable led to it."""
    report(f"{way}{where}", module)


def _outwards() -> Iterator[FrameType]:
    """Yield this thread's frames outside of torch and nbmem.

    The innermost comes first. Frames of other libraries that run no loop are skipped as well. None
    of nbmem's frames is retained.
    """
    frame: FrameType | None = sys._getframe().f_back  # noqa: SLF001 - the documented way
    while frame is not None:
        if module_of(frame) not in _NOT_THE_LOOPS:
            yield frame
        frame = frame.f_back
