"""Keep failures inside nbmem from reaching the user's cell."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from nbmem.core.errors import NbmemError
from nbmem.core.runtime.entry_points import clear_handled_tracebacks, entry
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.runtime.warning_filter import suppress_warnings

logger = logging.getLogger("nbmem")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def notify(sentence: str) -> None:
    """Write a sentence for the user to stderr.

    It is not a result, so it is separate from the cell's output.
    """
    with suppress(Exception):  # a stream that the user has replaced, or closed
        sys.stderr.write(f"nbmem: {sentence}\n")


@contextmanager
def error_boundary(doing: str, *, in_cell: bool = False) -> Iterator[None]:
    """Run nbmem's code in the user's kernel; report a failure in a sentence.

    Args:
        doing: What the code is for, after "could not": "show the report".
        in_cell: Whether a line of the user's own requested it; an interrupt then ends that line.
    """
    try:
        with suppress_warnings(outer=2):  # contextlib's `__enter__` is between
            yield
    except NbmemError as err:
        notify(str(err))
        clear_handled_tracebacks(err)
    except KeyboardInterrupt as err:
        if in_cell:
            raise
        notify(
            f"interrupted before it could {doing}. "
            "What was recorded is kept; `%nbmem report` shows it."
        )
        clear_handled_tracebacks(err)
    except Exception as err:
        reraise_if_from_signal(err)
        logger.debug("could not %s", doing, exc_info=True)
        notify(
            f"could not {doing} ({error_of(err)}). Your code is not affected. "
            "It is a fault of nbmem's: please report it with this line."
        )
        clear_handled_tracebacks(err)


def release_with_retry(doing: str, release: Callable[[], _R]) -> _R | None:
    """Call a function that releases something, with a second try.

    Anything not released would stay for good. Returns None if both tries fail.

    Args:
        doing: As for `error_boundary`.
        release: Releases it; called again after a failure, so it must allow that.
    """
    for _ in range(2):
        with error_boundary(doing):
            return release()
    return None


def shell_entry(
    doing: str, otherwise: Callable[..., Any] | None = None, *, in_cell: bool = False
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Wrap a function that IPython calls, reporting faults on stderr.

    This is `entry` of nbmem.core with a note on stderr.

    Args:
        doing: As for `error_boundary`.
        otherwise: As for `entry`.
        in_cell: Whether a line of the user's own calls it; an interrupt then ends that line.
    """

    def on_fault(_part: str, err: Exception) -> None:
        notify(f"could not {doing} ({error_of(err)}). Your code is not affected.")

    def interrupted() -> None:  # IPython would print it as a callback's fault
        notify(f"interrupted before it could {doing}.")

    on_interrupt = None if in_cell else interrupted
    return entry(doing, otherwise=otherwise, on_fault=on_fault, interrupted=on_interrupt)
