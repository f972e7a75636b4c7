"""Control Python's garbage collector and query the objects that it tracks."""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain, compress, starmap
from typing import Any, TypeVar

from nbmem.core.runtime.interrupts import SignalDelivery, signal_of

T = TypeVar("T")


def without_collector(work: Callable[[], T]) -> T:
    """Call a function with garbage collection disabled, then restore it."""
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


def instances(kinds: Iterable[type]) -> list[Any]:
    """List the objects of exactly these types that the collector tracks.

    All objects are visited in one C call, so that no other thread runs while something refers to
    them. Before Python 3.14 such a thread's `tuple(generator)` would fail with a SystemError,
    because the collector exposes a tuple that is still being filled (python/cpython#127058).
    """
    wanted = frozenset(map(id, kinds)).__contains__
    every: list[Any] = []
    found: list[Any] = []
    steps: tuple[Callable[[], object], ...] = (
        functools.partial(every.extend, chain.from_iterable(starmap(gc.get_objects, [()]))),
        functools.partial(found.extend, compress(every, map(wanted, map(id, map(type, every))))),
        every.clear,
    )
    call: Any = operator.call
    deque(map(call, steps), maxlen=0)
    return found


def with_subclasses(kind: type) -> Iterator[type]:
    """Yield a class and all of its subclasses, at every depth.

    A class with several of these bases is yielded once for each.
    """
    yield kind
    found: list[type] = type.__subclasses__(kind)
    for inner in found:
        yield from with_subclasses(inner)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Make garbage collections a hundred times rarer inside a block.

    The thresholds are restored afterwards. Garbage of the block is collected with the first new
    objects after it.
    """
    young, *older = gc.get_threshold()
    try:
        gc.set_threshold(100 * young, *older)
        yield
    finally:
        gc.set_threshold(young, *older)


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Limit collections to objects that are created inside a block.

    Older objects are frozen, and unfrozen afterwards. If objects are already frozen nothing is
    changed, because unfreezing would affect them too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def report_collections(
    report: Callable[[str, Mapping[str, int]], object], on_fault: Callable[[BaseException], object]
) -> Callable[[], None]:
    """Report the start and the end of every garbage collection.

    Python drops an exception that such a callback raises, and checks for signals before a
    function's first line: Ctrl-C would be lost. So the callback is C code that resumes a generator
    inside its `try`. A signal is delivered again after it.

    Args:
        report: Called with `start` or `stop`, and Python's information on the collection.
        on_fault: Called with an exception of `report`.

    Returns:
        A function that ends the reports.
    """
    steps = _reports(report, on_fault)
    next(steps)
    callback = functools.partial(max, key=steps.send)  # sends both arguments, one by one
    gc.callbacks.append(callback)

    def end() -> None:
        for index, one in enumerate(gc.callbacks):
            if one is callback:
                del gc.callbacks[index]
                return

    return end


def _reports(
    report: Callable[[str, Mapping[str, int]], object], on_fault: Callable[[BaseException], object]
) -> Generator[tuple[SignalDelivery, ...], Any, None]:
    """Report what is sent, phase and information in turn.

    It yields tuples, because `max` compares them. A tuple's `SignalDelivery` delivers its signal
    when the receiver frees it.
    """
    phase: str | None = None
    pending: list[SignalDelivery] = []
    while True:
        try:
            sent = yield (pending.pop(),) if pending else ()
            if type(sent) is str:
                phase = sent
            elif phase is not None:
                reported, phase = phase, None
                report(reported, sent)
        except GeneratorExit:
            return
        except BaseException as err:  # noqa: BLE001 - Python would print it and drop a signal
            with contextlib.suppress(BaseException):  # another signal may arrive here
                number = signal_of(err)
                if number is None:
                    on_fault(err)
                else:
                    pending.append(SignalDelivery(number))
