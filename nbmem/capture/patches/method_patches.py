"""Attributes of torch that are lent for a while: calls through them are seen, and nobody can tell.

A hook of torch's own would stand in the user's modules (where `torch.save(self)` pickles it), and a
wrapper would stand in every traceback. So what is replaced is an attribute of a class by a
descriptor. It sees the look-up just before the call, and hands out torch's own method; where the
end is of interest, as a `Call`: the interpreter lets go of that as soon as the call has returned or
raised. No frame of nbmem's lies between torch and itself, in no traceback.

Whoever asks the class, and not an instance on its way to a call, gets what was there before. An
attribute that somebody has replaced since is left as they made it.

A hook in a module would also be refused by a scripted one, and a global hook takes all modules off
torch's fast path. Python calls signal handlers where functions begin, also a finalizer's, which
loses what is raised before its first `try`; so the end of a call is told by a generator, which goes
on inside of one.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.compilations import pass_over
from nbmem.core.runtime.bytecode import calls_at_once
from nbmem.core.runtime.entry_points import caller, entry, met
from nbmem.core.runtime.warning_filter import suppress_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    Ended = Callable[[], None]
    Begins = Callable[[Any, FrameType], Ended | None]
    Lost = Callable[[str, Exception], None]


class Call(functools.partial):  # type: ignore[type-arg]
    """A callable that is called once, without a frame of ours, and tells when that is over.

    Attributes:
        tell: Tells it; called when the interpreter lets go of this, without a function between.
    """

    tell: Callable[[], object] = int
    __del__ = property(operator.attrgetter("tell"))


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
        self._is_lent = False
        self.lost = lost

    def lend(self) -> None:
        """Take the attribute's place, unless somebody else has taken it since."""
        cls = LentMethod
        pass_over(cls.__get__, cls.__call__, cls.__getattr__, telling)
        self._is_lent = True
        if self._owner.__dict__.get(self._name) is self._original:
            setattr(self._owner, self._name, self)

    def give_back(self) -> None:
        """Put back what was there before, unless somebody else has replaced it since."""
        self._is_lent = False
        if self._owner.__dict__.get(self._name) is self:
            setattr(self._owner, self._name, self._original)

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        method = self._original.__get__(thing, kind)
        if thing is None or self._inside.busy:  # the many calls inside a model's cost 0.2 us each
            return method
        return self._lent(thing, method, sys._getframe(1))  # noqa: SLF001 - the frame that looks it up

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What a call through the class's dictionary does."""
        return self._original(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._original)  # unittest.mock asks what it shall stand in for

    def __getattr__(self, name: str) -> Any:
        # Dynamo's guards ask what stands in the class's dictionary for `__defaults__` and the like.
        return getattr(object.__getattribute__(self, "_original"), name)

    def _as_before(self, _thing: Any, method: Any, _frame: FrameType) -> Any:
        return method

    @entry("the phases from here on", otherwise=_as_before)
    def _lent(self, thing: Any, method: Any, frame: FrameType) -> Any:
        if not self._is_lent:  # a patch of the user's own was taken out later than we were
            self.give_back()
            return method
        code = frame.f_code
        if not (calls_at_once(code, frame.f_lasti) if self._by is None else code is self._by):
            return method
        told = self._begins(thing, frame)
        if told is None:
            return method
        call = call_that_tells(method, told, self.lost, self._inside)
        self._inside.busy = True  # last: an interrupt before it ends the call, and so puts it right
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
        cls = LentAttribute
        pass_over(cls.__get__, cls.__set__, cls.__delete__)
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


def call_that_tells(method: Any, ended: Ended, lost: Lost, inside: Inside | None = None) -> Call:
    """A callable for one call, without a frame of ours.

    Args:
        method: What is called.
        ended: Told when that is over.
        lost: Leaves a note of a fault.
        inside: Where it is noted that the call is over.
    """
    call, end = Call(method), telling(ended, lost, inside or Inside())
    next(end)
    call.tell = end.__next__
    return call


def telling(ended: Ended, lost: Lost, inside: Inside) -> Iterator[None]:
    """Tells of a call's end when it is gone on with, and never raises.

    What a finalizer raises is lost, so also what the handler of a signal does, whom Python calls
    where a function begins: before its first `try`. A generator goes on in the middle of its own.
    """
    again = []  # lets go of what it has at the generator's end: it is delivered in torch's frame
    try:
        yield
    except GeneratorExit:
        return
    except BaseException as err:  # noqa: BLE001 - of a signal, just now
        again.append(met(err, "the end of a phase", lost))
    inside.busy = False
    try:
        with suppress_warnings():
            ended()
    except BaseException as err:  # noqa: BLE001 - as above
        again.append(met(err, "the end of a phase", lost))
    yield
