"""Read the variables of functions that a followed function calls.

When `train` returns to `main` its variables are gone, and with them the names of what held memory
at the peak. So the functions that `main` may call run with two calls of nbmem's inside, at their
begin and at their return (`marked_code`). Where the most memory was held the variables of all
functions on the stack are looked at. Nothing of the user's lives longer by it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import TypeVar

from nbmem.capture.interpreter.last_call import calls_once, users_function
from nbmem.capture.interpreter.marked_code import Hooks, source_of, values_named
from nbmem.capture.interpreter.object_members import (
    is_optimized,
    locals_of,
)
from nbmem.capture.patches.compilations import has_compiled, is_compiled
from nbmem.capture.tensors.modules import is_tensor
from nbmem.capture.torch_cuda import device_count, is_higher, peaks_allocated, read_counters
from nbmem.core.runtime.entry_points import entry, is_ours
from nbmem.core.session.source_files import is_library

T = TypeVar("T")

MAX_FUNCTIONS = 32
MAX_DEPTH = 4
MAX_CALLS = 100
"""Of one function. Then it runs as it was: what is called more often is called at every step."""
MAX_LOOKS = 8
LOOKS_IN_LOOP = 2
"""At one function that is called in a loop."""
NEARLY = 0.5
"""Share of the bytes at a look below which a later one around it cannot say more."""
HIGHER = 1.05
"""Factor by which a peak must grow for another look at the same function."""
WORTH = 0.1
"""Share of the peak that must be held where no peak was."""
_PART = "the variables of a function"
_HOOKS = Hooks(__name__, "entered", "returns", "behind")
_watching: list[NestedCalls] = []


@dataclass(slots=True, eq=False)
class _Watched:
    """A function that is watched.

    Attributes:
        function: The function.
        own: Its own code.
        marked: Its code with the calls.
        in_loop: Whether it is called in loops only.
        loops: Whether a loop is among its lines, or among those of functions that it calls.
        is_kept: Whether its variables live until they are read behind its call.
    """

    function: FunctionType
    own: CodeType
    marked: CodeType
    in_loop: bool
    loops: bool
    is_kept: bool = False
    calls: int = 0
    looks: int = 0

    def drives(self, frame: FrameType, value: object) -> bool:
        """Return whether the function makes steps, and is no part of one.

        A part of a step computes something from tensors, and what makes a model or a batch returns
        it. Lines and other functions name what they hold.

        Args:
            frame: Its frame, with its arguments.
            value: What it returns.
        """
        if self.loops and not self.in_loop:
            return True
        if not self.loops and not _is_figure(value):
            return False
        code, variables = self.own, locals_of(frame)
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return not any(is_tensor(variables.get(name)) for name in arguments)

    def restore(self) -> None:
        """Restore the function's own code, unless it has newer code."""
        if self.function.__code__ is self.marked:
            self.function.__code__ = self.own


@dataclass(slots=True)
class _Call:
    frame: int
    watched: _Watched
    peaks: list[int]
    looks: int
    hook_events: int


@dataclass(slots=True)
class _Reading:
    """A reading of functions' variables.

    Attributes:
        allocated: Bytes that were allocated.
        peaks: The most until then.
    """

    allocated: int
    peaks: list[int]


@dataclass(slots=True, eq=False)
class NestedCalls:
    """Watch the functions that a cell's or script's functions call.

    Args:
        read: Called with the frames of the running functions, the innermost first, when their
            variables are worth a look, and with whether it is called in a loop. They run
            on. Returns whether it says more than the look before.
        released: Called when the innermost one has returned.
        hook_events: Counts the events of modules, backwards and optimizers. A function without any
            makes no steps, where there are some.

    Attributes:
        waits: Whether the function that was looked at last has not returned yet.
    """

    read: Callable[[list[FrameType], bool], bool]
    released: Callable[[], None]
    hook_events: Callable[[], int] = int
    _watched: dict[int, _Watched] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _calls: list[_Call] = field(default_factory=list)
    _best: _Reading | None = None
    _looks: int = 0
    waits: bool = False
    _place: tuple[int, int] = (0, 0)

    # --- what is watched

    def watch(self, function: FunctionType, *, is_kept: bool = False) -> None:
        """Watch a function of the user's and those that it calls.

        A function that torch.compile has to read stays as it is, and so do all others then.

        Args:
            function: The function.
            is_kept: Whether its variables live until they are read behind its call.
        """
        self._place = os.getpid(), threading.get_ident()
        _watching[:] = [self]
        if not has_compiled():
            self._mark(function, in_loop=False, depth=0)
            for one in self._watched.values():
                one.is_kept |= is_kept and one.function is function

    def _mark(self, function: FunctionType, *, in_loop: bool, depth: int) -> bool:
        """Mark a function and its callees; return whether one has a loop."""
        own = function.__code__
        if id(function) in self._seen:
            return any(one.loops for one in self._watched.values() if one.function is function)
        self._seen.add(id(function))
        source = source_of(own) if depth <= MAX_DEPTH and len(self._seen) <= MAX_FUNCTIONS else None
        if source is None or source.compiles:
            return False
        calls = source.calls()
        called = [
            (name, inner)
            for name, value in values_named(function, calls)
            if not is_compiled(value) and (inner := users_function(value)) is not None
        ]
        loops, followed = source.has_loop, set[str]()
        for name, inner in called:
            if self._mark(inner, in_loop=in_loop or calls[name], depth=depth + 1):
                loops = True
                followed.add(name)
            elif id(inner.__code__) in self._watched:
                followed.add(name)
        if in_loop and not loops:  # a part of a step: it may be called thousands of times
            return False
        marked = source.marked(followed, _HOOKS)
        if marked is not None:
            watched = _Watched(function, own, marked, in_loop=in_loop, loops=loops)
            self._watched[id(marked)] = watched
            function.__code__ = marked
        return loops

    def restore(self) -> None:
        """Give all functions their own code again."""
        for one in self._watched.values():
            one.restore()

    def stop(self) -> None:
        """Stop watching."""
        self.restore()
        if self in _watching:
            _watching.clear()

    # --- what is known of the looks

    def set_read(self) -> None:
        """Register that a function around the others is read now."""
        self._best = _Reading(_allocated(), peaks_allocated())

    def is_better(self) -> bool:
        """Return whether the last reading knows more than one would now."""
        best = self._best
        return (
            best is not None
            and not is_higher(peaks_allocated(), best.peaks)
            and _allocated() < NEARLY * best.allocated
        )

    def failed_frames(self, error: BaseException | None) -> list[FrameType]:
        """Return the frames of the watched functions that an error has ended.

        The innermost is first, and the outermost left out.
        """
        frames: list[FrameType] = []
        way = None if error is None else error.__traceback__
        while way is not None:
            watched = self._watched.get(id(way.tb_frame.f_code))
            if watched is not None and (not frames or watched.drives(way.tb_frame, None)):
                frames.append(way.tb_frame)
            way = way.tb_next
        return frames[:0:-1]

    # --- what the marked functions call

    def begins(self, frame: FrameType) -> None:
        """Register that a marked function begins."""
        if not self._is_here():
            return
        self.returned()
        watched = self._watched.get(id(frame.f_code))
        if watched is None or not self._is_called(frame.f_back):
            return
        watched.calls += 1
        if watched.calls > MAX_CALLS:
            watched.restore()
            return
        if len(self._calls) > MAX_CALLS:  # functions that failed
            self._calls.clear()
        self._calls.append(
            _Call(id(frame), watched, peaks_allocated(), self._looks, self.hook_events())
        )

    def ends(self, frame: FrameType, value: object) -> None:
        """Read the variables of a marked function that returns.

        Nothing is read where they say nothing new.

        Args:
            frame: Its frame.
            value: What it returns.
        """
        if not self._is_here():
            return
        self.returned()
        call = self._pop(id(frame))
        if call is None:
            return
        peaks, allocated = peaks_allocated(), _allocated()
        if self._is_worth(call, peaks, allocated) and call.watched.drives(frame, value):
            call.watched.looks += 1
            self._looks += 1
            if self.read(_users_frames(frame), call.watched.in_loop):
                self._best = _Reading(allocated, peaks)
                self.waits = True

    def returned(self) -> None:
        """Register that the function which was looked at last has returned."""
        if self.waits and self._is_here():
            self.waits = False
            self.released()

    def _is_here(self) -> bool:
        """Return whether this is the followed thread, in the same process."""
        return self._place == (os.getpid(), threading.get_ident())

    def _is_called(self, caller: FrameType | None) -> bool:
        """Return whether a marked function or a script's line is the caller.

        A `backward` that the autograd engine calls ends while others hold what it worked with.
        """
        while caller is not None and calls_once(caller.f_code.co_filename):
            caller = caller.f_back
        return caller is not None and (
            id(caller.f_code) in self._watched or not is_optimized(caller)
        )

    def _pop(self, frame: int) -> _Call | None:
        """Take a call off the list, with those inside that have failed."""
        places = [at for at, call in enumerate(self._calls) if call.frame == frame]
        if not places:
            return None
        call = self._calls[places[-1]]
        del self._calls[places[-1] :]
        return call

    def _is_worth(self, call: _Call, peaks: list[int], allocated: int) -> bool:
        watched, best = call.watched, self._best
        if self.hook_events() == call.hook_events > 0:
            return False
        if watched.is_kept or not any(peaks) or self._looks >= MAX_LOOKS:
            return False
        if watched.in_loop and watched.looks >= LOOKS_IN_LOOP:
            return False
        if best is None:
            return is_higher(peaks, call.peaks) or allocated >= WORTH * sum(peaks)
        if is_higher(peaks, best.peaks):
            return is_higher(peaks, call.peaks) or allocated >= best.allocated
        # A function around the one that was looked at knows what happened since.
        around = self._looks > call.looks
        return allocated >= (NEARLY * best.allocated if around else HIGHER * best.allocated)


def _is_figure(value: object) -> bool:
    """Return whether a value holds no memory, like a number or a text."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_figure, value))
    if isinstance(value, dict):
        return all(map(_is_figure, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))


def _allocated() -> int:
    """Return the bytes that torch has allocated on all cards."""
    read = map(read_counters, range(device_count()))
    return sum(one.allocated for one in read if one is not None)


def _users_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's functions that run, the innermost first."""
    found = []
    while frame is not None and is_optimized(frame):
        if is_ours(frame):
            break
        if not is_library(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def restore() -> None:
    """Give all functions their own code again."""
    for one in _watching:
        one.restore()


def _lose(_part: str, _err: BaseException) -> None:
    """Give up watching: the names of a function's variables are lost."""
    restore()
    _watching.clear()


@entry(_PART, on_fault=_lose)
def _begins(frame: FrameType) -> None:
    for one in _watching:
        one.begins(frame)


@entry(_PART, on_fault=_lose)
def _ends(frame: FrameType, value: object) -> None:
    for one in _watching:
        one.ends(frame, value)


@entry(_PART, on_fault=_lose)
def _returned() -> None:
    for one in _watching:
        one.returned()


def entered() -> None:
    """Register that the calling function begins."""
    if _watching:
        _begins(sys._getframe(1))  # noqa: SLF001 - the documented way


def returns(value: T = None) -> T:  # type: ignore[assignment]
    """Read the variables of the calling function, which returns a value."""
    if _watching:
        _ends(sys._getframe(1), value)  # noqa: SLF001 - the documented way
    return value


def behind() -> None:
    """Register that a function has returned to the calling one."""
    if _watching and _watching[0].waits:
        _returned()
