"""`free traceback`: free what failed cells left in Python and IPython.

`sys.last_*` and IPython's own copies are released, and the frames are cleared. A frame may still be
held by a cycle with its own exception, or by cycles that IPython's formatter leaves.

Before Python 3.13 a frame may also hold a dictionary of its locals, which a debugger or IPython's
formatter requested. That is cleared, too. So are the cells of an inner function that only its
finished outer frame holds: torch runs a module with hooks in one.

Failed cells before the last one left cycles. Where they keep memory, the garbage is collected.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import CellType, FrameType, FunctionType, TracebackType
from typing import Any

from nbmem.api.freeing.target import Target
from nbmem.capture.heap import walk
from nbmem.capture.interpreter.roots import Place, kept_exceptions
from nbmem.core.session.holders import RUN_BEFORE, HolderKind

_LAST = ("last_exc", "last_value", "last_traceback", "last_type")
_KEPT = {
    "InteractiveTB": ("tb", "evalue", "etype"),
    "SyntaxTB": ("tb", "evalue", "etype", "last_syntax_error"),
    "CustomTB": ("tb", "evalue", "etype"),
}
_PARTS = ("__traceback__", "__cause__", "__context__")


def target(shell: Any | None, namespace: dict[str, Any]) -> Target:
    """Return the target of the failed cells' exceptions with their frames."""
    garbage = _of_runs_before(namespace)
    release = partial(_release, shell, collect=bool(garbage))
    found = Target.of_places("the traceback", _is_traceback, namespace, release)
    return replace(found, garbage=garbage)


def _of_runs_before(namespace: dict[str, Any]) -> frozenset[tuple[int, int]]:
    """Return the storages that only failed cells before the last one keep."""
    return frozenset(
        (card, held.addr)
        for card, all_held in walk(namespace).by_device.items()
        for held in all_held
        if all(RUN_BEFORE in way.root for way in held.holders)
    )


def _is_traceback(place: Place) -> bool:
    return place.kind is HolderKind.TRACEBACK


def _release(shell: Any | None, *, collect: bool) -> list[str]:
    for traceback in list(_tracebacks(kept_exceptions(shell))):
        _empty(traceback.tb_frame)
    for name in _LAST:
        if hasattr(sys, name):
            delattr(sys, name)
    for keeper, names in _KEPT.items():
        kept = vars(getattr(shell, keeper, None) or object) if hasattr(shell, keeper) else {}
        for name in names:
            if name in kept:
                setattr(getattr(shell, keeper), name, None)
    last = getattr(shell, "last_execution_result", None)
    if last is not None:
        last.error_in_exec = last.error_before_exec = None
    if collect:
        gc.collect()
    return []


def _tracebacks(objects: list[Any]) -> Iterator[TracebackType]:
    """Yield the tracebacks of exceptions, of their causes and of groups."""
    pending, known = list(objects), set()
    while pending:
        obj = pending.pop()
        if obj is None or id(obj) in known:
            continue
        known.add(id(obj))
        if type(obj) is TracebackType:
            yield obj
            pending.append(obj.tb_next)
            continue
        pending += [getattr(BaseException, name).__get__(obj) for name in _PARTS]
        if issubclass(type(obj), BaseExceptionGroup):
            pending += BaseExceptionGroup.exceptions.__get__(obj)


def _empty(frame: FrameType) -> None:
    """Clear the locals of a finished frame; a running one is left alone."""
    code = frame.f_code
    with contextlib.suppress(RuntimeError):
        frame.clear()
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        for held in gc.get_referents(frame):
            if type(held) is dict and held and held.keys() <= own:
                held.clear()
            elif type(held) is FunctionType and held.__code__ is code:
                known_elsewhere = _references(held) > _OF_ONE_HOLDER + 1  # the list and the frame
                if not known_elsewhere:
                    _empty_cells(held.__closure__ or ())


def _empty_cells(cells: tuple[CellType, ...]) -> None:
    """Clear the cells that no other function shares."""
    for cell in cells:
        if _references(cell) <= _OF_ONE_HOLDER:
            del cell.cell_contents


def _references(obj: object) -> int:
    return sys.getrefcount(obj)


_OF_ONE_HOLDER = next(_references(cell) for cell in (CellType(),))
"""Result of `_references` in a loop over the only holder; it depends on the Python version."""
