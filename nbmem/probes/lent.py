"""Attributes of torch that are lent for a while: calls through them are seen, and nobody can tell.

A hook of torch's own would stand in the user's modules (where `torch.save(self)` pickles it), and a
wrapper would stand in every traceback. So what is replaced is an attribute of a class by a
descriptor. It sees the look-up just before the call, and hands out torch's own method; where the
end is of interest, as a `Call`: the interpreter lets go of that as soon as the call has returned or
raised. No frame of nbmem's lies between torch and itself, in no traceback.

Whoever asks the class, and not an instance on its way to a call, gets what was there before. An
attribute that somebody has replaced since is left as they made it.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from nbmem.core.entry import caller, entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

    Ended = Callable[[], None]
    Begins = Callable[[Any, FrameType], Ended | None]
    Lost = Callable[[str, Exception], None]

_IN_ONE = sys.version_info >= (3, 12)
"""Since then one instruction looks up attributes and methods, and its lowest bit says which."""
_NAMES = ("LOAD_ATTR", "LOAD_SUPER_ATTR") if _IN_ONE else ("LOAD_METHOD",)
_LOOK_UPS = {dis.opmap[name] for name in _NAMES}


class Call(functools.partial):  # type: ignore[type-arg]
    """A callable that is called once, without a frame of ours, and tells when that is over.

    Attributes:
        ended: Is told.
        lost: Leaves a note of a fault.
    """

    ended: Ended = staticmethod(lambda: None)
    lost: Lost | None = None

    @entry("the end of a phase")
    def __del__(self) -> None:
        self.ended()


class Inside(threading.local):
    """Whether this thread is inside a call that was told, so that those below are of no interest.

    Attributes:
        busy: Whether a call was told whose end was not.
    """

    busy = False


class LentMethod:
    """A method that torch or the user calls; of calls within each other the outermost is told.

    Args:
        owner: The class.
        name: The method's name.
        begins: Told the object and the calling frame before the call; returns what is to be told
            of its end, or None.
        lost: Leaves a note of a fault.
        by: The only code whose calls are of interest; None for every look-up that a call follows.
    """

    def __init__(
        self, owner: Any, name: str, begins: Begins, lost: Lost, by: CodeType | None = None
    ) -> None:
        self._owner, self._name = owner, name
        self._original = owner.__dict__[name]
        self._begins = begins
        self._by = by
        self._inside = Inside()
        self.lost = lost

    def lend(self) -> None:
        """Take the attribute's place."""
        setattr(self._owner, self._name, self)

    def give_back(self) -> None:
        """Put back what was there before, unless somebody else has replaced it since."""
        if self._owner.__dict__.get(self._name) is self:
            setattr(self._owner, self._name, self._original)

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        method = self._original.__get__(thing, kind)
        if thing is None or self._inside.busy:  # the many calls inside a model's cost 0.2 us each
            return method
        return self._lent(thing, method, sys._getframe(1))  # noqa: SLF001 - who looks it up

    def _as_before(self, _thing: Any, method: Any, _frame: FrameType) -> Any:
        return method

    @entry("the phases from here on", otherwise=_as_before)
    def _lent(self, thing: Any, method: Any, frame: FrameType) -> Any:
        if not (calls_at_once(frame) if self._by is None else frame.f_code is self._by):
            return method
        told = self._begins(thing, frame)
        if told is None:
            return method
        inside = self._inside

        def ended() -> None:
            inside.busy = False
            told()

        call = _call(method, ended, self.lost)
        inside.busy = True  # last: an interrupt before it ends the call, and so puts it right
        return call


class LentAttribute:
    """An attribute of instances that torch reads at a moment of interest.

    Args:
        owner: The class, which has no such attribute itself.
        name: The attribute's name.
        read: Told the object and the reading frame.
        by: File and function of the code whose readings are of interest.
        lost: Leaves a note of a fault.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        read: Callable[[Any, FrameType], None],
        lost: Lost,
        by: tuple[str, str],
    ) -> None:
        self._owner, self._name = owner, name
        self._read = read
        self._by = by
        self.lost = lost

    def lend(self) -> None:
        """Stand before the instances' own attribute."""
        if self._name not in self._owner.__dict__:
            setattr(self._owner, self._name, self)

    def give_back(self) -> None:
        """Stand there no longer."""
        if self._owner.__dict__.get(self._name) is self:
            delattr(self._owner, self._name)

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        if thing is not None and self._name in thing.__dict__:
            self._tell(thing)
            return thing.__dict__[self._name]
        missing = kind if thing is None else type(thing)
        raise AttributeError(f"{missing.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, thing: Any, value: Any) -> None:
        thing.__dict__[self._name] = value

    def __delete__(self, thing: Any) -> None:
        if self._name not in thing.__dict__:
            raise AttributeError(self._name)
        del thing.__dict__[self._name]

    @entry("the optimizer's steps")
    def _tell(self, thing: Any) -> None:
        frame = caller()
        code = None if frame is None else frame.f_code
        if frame and code and (code.co_filename, code.co_name) == self._by:
            self._read(thing, frame)


class LentName:
    """A name in a module of torch's, behind which stands an object of which one method is called.

    Args:
        module: The module.
        name: The name in it.
        path: Attributes from the object to the method: `("_execution_engine", "run_backward")`.
        begins: Told the calling frame before each call; returns what is to be told of its end.
        lost: Leaves a note of a fault.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        path: tuple[str, str],
        begins: Callable[[FrameType], Ended | None],
        lost: Lost,
    ) -> None:
        self._module, self._name = module, name
        self._stand_in = _StandIn(getattr(module, name), path, begins, lost)

    def lend(self) -> None:
        """Take the name."""
        setattr(self._module, self._name, self._stand_in)

    def give_back(self) -> None:
        """Put back what was there before, unless somebody else has taken the name since."""
        if getattr(self._module, self._name, None) is self._stand_in:
            setattr(self._module, self._name, self._stand_in.original)


class _StandIn:
    """An object of which everything is the original's, but for one path to a call."""

    def __init__(
        self,
        original: Any,
        path: tuple[str, ...],
        begins: Callable[[FrameType], Ended | None],
        lost: Lost,
    ) -> None:
        self.original = original
        self._path = path
        self._begins = begins
        self.lost = lost

    def _as_before(self, name: str) -> Any:
        return getattr(self.original, name)

    @entry("the phases from here on", otherwise=_as_before)
    def __getattr__(self, name: str) -> Any:
        found = getattr(self.original, name)
        if name != self._path[0]:
            return found
        if len(self._path) > 1:
            return _StandIn(found, self._path[1:], self._begins, self.lost)
        frame = caller()
        ended = None if frame is None else self._begins(frame)
        return found if ended is None else _call(found, ended, self.lost)


def calls_at_once(frame: FrameType) -> bool:
    """Whether what a frame looks up just now is a method that its next step calls.

    Anything else keeps what it gets, as `step = model.zero_grad` does, beyond the recording's end.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at] in _LOOK_UPS and (not _IN_ONE or bool(code[at + 1] & 1))


def _call(method: Any, ended: Ended, lost: Lost) -> Call:
    call = Call(method)
    call.ended, call.lost = ended, lost
    return call


class Wrapped:
    """A function of a module, told before each call; for what nobody looks up but torch itself.

    Args:
        module: The module.
        name: The function's name.
        told: Told the arguments before the call.
        lost: Leaves a note of a fault.
    """

    def __init__(self, module: Any, name: str, told: Callable[..., None], lost: Lost) -> None:
        self._module, self._name = module, name
        self._told = told
        self.lost = lost
        self._original: Any = None
        self._wrapper: Any = None

    def lend(self) -> None:
        """Stand before the function."""
        original = self._original = getattr(self._module, self._name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._tell(args, kwargs)
            return original(*args, **kwargs)

        self._wrapper = wrapper
        setattr(self._module, self._name, wrapper)

    def give_back(self) -> None:
        """Put the function back, unless somebody else has replaced it since."""
        if self._wrapper is not None and getattr(self._module, self._name, None) is self._wrapper:
            setattr(self._module, self._name, self._original)

    @entry("what became of the memory history")
    def _tell(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._told(*args, **kwargs)
