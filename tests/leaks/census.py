"""Count live objects of a process, by type, length and reference.

A leak is found without a list of places. What is larger after each of several equal intervals of
work, and did not grow so in intervals of a control, is named with the way that leads to it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import itertools
import operator
import os
import signal
import sys
import tempfile
import threading
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.leaks.object_paths import paths_to

_SIZED = (list, dict, set, bytearray, array)
_UNTRACKED = {dict, bytearray, array}
"""Containers that the collector may not list: it asks only for what can be part of a cycle."""
_CACHE = type(functools.cache(int))
_MORE_REFERENCES = "has more references"
_CHUNK = 2_000
_COLLECTIONS = 2
"""What dies in one collection may let go of what only the next one finds."""
_TOOLS = 6
"""Of `sys.monitoring`."""
_KIB = 1024

LIMITS = {"resident KiB": 256.0, "KiB of C's heap": 32.0, "blocks of Python's": 50.0}
"""What a round may add to figures that vary by themselves; half a unit to any other."""
_LIMIT = 0.5


class Census(NamedTuple):
    """One count of a process.

    Attributes:
        ids: Addresses of the objects, in ascending order.
        sizes: Their lengths, in the same order; -1 for what has none.
        references: How many references each has.
        types: How many objects of a type there are, by its name.
        figures: Figures of the whole process, by name.
    """

    ids: array[int]
    sizes: array[int]
    references: array[int]
    types: dict[str, int]
    figures: dict[str, int]

    def of(self, address: int) -> tuple[int, int] | None:
        """Return an object's length and references; None if unknown."""
        place = bisect_left(self.ids, address)
        if place == len(self.ids) or self.ids[place] != address:
            return None
        return self.sizes[place], self.references[place]


class Growth(NamedTuple):
    """Growth in every interval, at least by so much for each round."""

    what: str
    rate: float

    def __str__(self) -> str:
        return f"{self.rate:10.1f}  {self.what}"


def take(earlier: Sequence[Census] = ()) -> Census:
    """Count all live objects.

    Args:
        earlier: Counts that are kept: their own bytes do not count.
    """
    for _ in range(_COLLECTIONS):
        gc.collect()
    figures = _figures()
    bytes_of_own = sum(sys.getsizeof(column) for one in earlier for column in one[:3])
    for name in figures.keys() & {"resident KiB", "KiB of C's heap"}:
        figures[name] -= bytes_of_own // _KIB
    found: list[Any] = gc.get_objects()
    found += _untracked(found)
    own = {id(earlier), *(id(part) for one in earlier for part in (one, *one))}
    apart = own | _bounded(found)
    found = [*compress(found, map(operator.not_, map(apart.__contains__, map(id, found))))]
    found.sort(key=id)
    named: Counter[str] = Counter()
    for kind, count in Counter(map(type, found)).items():
        named[sys.intern(f"{kind.__module__}.{kind.__qualname__}")] += count
    return Census(
        array("q", [*map(id, found)]),
        _lengths(found),
        array("q", [*map(sys.getrefcount, found)]),
        dict(named),
        figures,
    )


def _bounded(found: Iterable[Any]) -> set[int]:
    """Return the dictionaries of caches that have a bound."""
    caches = (one for one in found if type(one) is _CACHE and one.cache_info().maxsize is not None)
    return {id(inner) for one in caches for inner in gc.get_referents(one) if type(inner) is dict}


def _untracked(found: Sequence[Any]) -> list[Any]:
    held: dict[int, Any] = {}
    for begin in range(0, len(found), _CHUNK):
        all_of_some = gc.get_referents(*itertools.islice(found, begin, begin + _CHUNK))
        for obj in compress(all_of_some, map(_UNTRACKED.__contains__, map(type, all_of_some))):
            if not gc.is_tracked(obj):
                held[id(obj)] = obj
    return list(held.values())


def _lengths(found: Sequence[Any]) -> array[int]:
    """Return containers' lengths, without those that have a bound."""
    ways = {kind: _way_to_length(kind) for kind in set(map(type, found))}
    return array("q", [-1 if (way := ways[type(one)]) is None else way(one) for one in found])


def _way_to_length(kind: type) -> Callable[[Any], int] | None:
    if kind is _CACHE:
        return _unbounded_cache
    if issubclass(kind, deque):
        return _unbounded_deque
    base = next((base for base in _SIZED if issubclass(kind, base)), None)
    return None if base is None else base.__len__


def _unbounded_cache(cache: Any) -> int:
    told = cache.cache_info()
    return -1 if told.maxsize is not None else int(told.currsize)


def _unbounded_deque(items: deque[Any]) -> int:
    return -1 if items.maxlen is not None else deque.__len__(items)


def _figures() -> dict[str, int]:
    this = psutil.Process()
    found = {
        "blocks of Python's": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "functions called at exit": atexit._ncallbacks(),  # type: ignore[attr-defined]
        "variables of the environment": len(os.environ),
        "temporary files": sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
        "handlers of signals": sum(map(callable, map(signal.getsignal, signal.valid_signals()))),
        "threads of the system": this.num_threads(),
        "open files": this.num_fds(),
        "child processes": len(this.children()),
        "resident KiB": this.memory_info().rss // _KIB,
    }
    if hasattr(sys, "monitoring"):
        tools = map(sys.monitoring.get_tool, range(_TOOLS))
        found["tools of sys.monitoring"] = sum(tool is not None for tool in tools)
    if (heap := _heap()) is not None:
        found["KiB of C's heap"] = heap // _KIB
    return found


_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


def _heap() -> int | None:
    """Return the bytes in use of C's allocator; None if unknown."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _MallInfo
    told = ask()
    return int(told.uordblks + told.hblkhd)


def grown_by(
    work: Callable[[], object], rounds: int = 2, control: Sequence[Census] = ()
) -> list[Growth]:
    """Find what grows where something is done again and again.

    Args:
        work: One round of it.
        rounds: Rounds of an interval.
        control: Counts around rounds of the same without what is looked at.
    """
    return growths(counted(work, rounds), control, rounds)


def counted(work: Callable[[], object], rounds: int, intervals: int = 3) -> list[Census]:
    """Count before, between and after intervals of work."""
    taken: list[Census] = []
    for _ in range(intervals + 1):
        for _ in range(rounds):
            work()
        taken.append(take(taken))
    return taken


def growths(work: Sequence[Census], control: Sequence[Census], rounds: int) -> list[Growth]:
    """Find what grew in each interval of the work and not in the control.

    Args:
        work: Counts before, between and after the intervals.
        control: The same of a control, of as many rounds an interval; may be empty.
        rounds: Rounds of an interval.
    """
    found = _named(work, control, rounds, lambda one: one.figures)
    found += _named(work, control, rounds, lambda one: one.types)
    grown = _grown(work, control, rounds)
    for obj in gc.get_objects() if grown else ():
        if issubclass(type(obj), type) and grown.get(id(obj), ("",))[0] == _MORE_REFERENCES:
            del grown[id(obj)]  # each instance has one, and those are counted
    ways = paths_to(grown)
    found += [Growth(f"{ways[address]} {what}", rate) for address, (what, rate) in grown.items()]
    return found


def _named(
    work: Sequence[Census],
    control: Sequence[Census],
    rounds: int,
    part: Callable[[Census], dict[str, int]],
) -> list[Growth]:
    found = []
    for name in part(work[-1]):
        rate = _rate([part(one).get(name, 0) for one in work], rounds)
        usual = _rate([part(one).get(name, 0) for one in control], rounds, most=True)
        if rate - max(usual, 0) >= LIMITS.get(name, _LIMIT):
            found.append(Growth(name, rate - max(usual, 0)))
    return found


def _grown(
    work: Sequence[Census], control: Sequence[Census], rounds: int
) -> dict[int, tuple[str, float]]:
    """Return the objects that were there throughout and grew."""
    found = {}
    for place, address in enumerate(work[-1].ids):
        size, references = work[-1].sizes[place], work[-1].references[place]
        before = work[-2].of(address)
        if before is None or (size <= before[0] and references <= before[1]):
            continue
        each = [one.of(address) for one in work]
        if None in each:
            continue
        usual = [known for one in control if (known := one.of(address)) is not None]
        for which, what in ((0, "has more items"), (1, _MORE_REFERENCES)):
            rate = _rate([one[which] for one in each if one], rounds)
            rate -= max(0, _rate([one[which] for one in usual], rounds, most=True))
            if rate >= _LIMIT and not (which and address in found):
                found[address] = what, rate
    return found


def _rate(counts: Sequence[int], rounds: int, *, most: bool = False) -> float:
    steps = [after - before for before, after in itertools.pairwise(counts)]
    return (max if most else min)(steps, default=0) / rounds
