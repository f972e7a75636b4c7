"""Python's garbage collector, kept off while millions of objects are made that are no garbage."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

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
