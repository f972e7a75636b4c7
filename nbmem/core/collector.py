"""Python's garbage collector, off or rare while objects are made by the million and kept."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def without_collector(work: Callable[[], T]) -> T:
    """Do something without a collection in between; afterwards the collector is as it was."""
    collecting = gc.isenabled()
    try:
        try:
            gc.disable()
            return work()
        finally:
            if collecting:
                gc.enable()
    except BaseException:
        if collecting:  # an interrupt can come between the two lines above
            gc.enable()
        raise


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector come by a hundred times as rarely; afterwards it is as it was.

    What is garbage by then goes with the first new objects after it.
    """
    young, *older = gc.get_threshold()
    try:
        gc.set_threshold(100 * young, *older)
        yield
    finally:
        gc.set_threshold(young, *older)


@contextlib.contextmanager
def only_new() -> Iterator[None]:
    """Let collections look at what is made from here on alone; afterwards at everything again.

    Nothing is changed where something is frozen already: it would not be afterwards.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
