"""What makes the card's books safe from Ctrl-C: storages die without Python code, work is whole.

A finalizer in Python may be interrupted before its first line: the interpreter drops the interrupt
and the block would stay allocated for good. So a dying storage is noted in C alone, and its block
is freed before the allocator is next used or looked at.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import functools
import sys
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from torch._C._profiler import CapturedTraceback, gather_traceback

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.interrupts import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Death(NamedTuple):
    """When a storage died, time.time_ns(), and the stack there; None where none is kept."""

    t_ns: int
    where: CapturedTraceback | None


class Mortal(Protocol):
    """A block of the card's memory whose owner can die; hashed by its identity.

    Attributes:
        addr: Address on the card, 0 for no bytes.
    """

    addr: int

    def leave(self) -> None:
        """Take it off the list of those that live."""


class Dying:
    """Blocks whose storages have died and that are not freed yet, in order.

    Attributes:
        when: Each block with its death.
        died: Notes a block, the time and perhaps the place, without any Python code:
            `dict.__getitem__` of a key that is not there, in a dictionary that makes its values
            with the clock.
    """

    def __init__(self) -> None:
        self.when: defaultdict[Mortal, int | tuple[Any, ...]] = defaultdict(CLOCK.time_ns)
        self.died: Callable[[Mortal], Any] = self.when.__getitem__

    def keep_places(self, *, wanted: bool) -> None:
        """Keep the stack of each death from now on, or do not."""
        self.when.default_factory = _when_and_where() if wanted else CLOCK.time_ns

    def add(self, addr: int) -> None:
        """Note a block that no storage has."""
        self.when[_Address(addr)]

    def __iter__(self) -> Iterator[tuple[int, Death]]:
        """Addresses with their deaths, each once; more may die meanwhile, in any thread."""
        while self.when:
            for block in list(self.when):  # one call of C: no thread notes a death within it
                told = self.when.pop(block)
                block.leave()
                if block.addr:
                    yield block.addr, Death(told, None) if isinstance(told, int) else Death(*told)


def _when_and_where() -> Callable[[], Any]:
    """The clock and the stack at once, again without Python code; it holds no frame."""
    where = functools.partial(gather_traceback, True, False, False)
    return functools.partial(next, zip(iter(CLOCK.time_ns, None), iter(where, None), strict=False))


class _Address:
    """A block without a storage; each is its own key."""

    __slots__ = ("addr",)

    def __init__(self, addr: int) -> None:
        self.addr = addr

    def leave(self) -> None:
        """Leave no list: it was on none."""


class _Held:
    """Whether an interrupt came while work was whole."""

    came = False


def _hold(*_signal_and_frame: object) -> None:
    _Held.came = True


_MAIN = threading.main_thread().ident


def whole(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let Ctrl-C wait until a function is done; it comes in the caller's frame.

    `core.interrupts.held_back` does the same for 28 us, where a tensor is made in 100: the C
    functions below it take one.
    """

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if threading.get_ident() != _MAIN:
            return function(*args, **kwargs)
        before = _signal.getsignal(_signal.SIGINT)
        if before is _hold or not callable(before):
            return function(*args, **kwargs)
        try:
            _signal.signal(_signal.SIGINT, _hold)
            return function(*args, **kwargs)
        finally:
            _signal.signal(_signal.SIGINT, before)
            if _Held.came:
                _Held.came = False
                again = Delivery()  # this frame's end is what it waits for
                if sys.exception() is not None:  # its traceback may keep this frame for long
                    del again

    return guarded
