"""Patch attributes of torch's classes, to observe calls through them.

A hook of torch's own would remain in the user's modules (where `torch.save(self)` pickles it), and
a wrapper would appear in every traceback. So an attribute of a class is replaced by a descriptor,
as long as necessary. The descriptor observes the lookup just before the call, and returns torch's
own method. If the end of the call matters, it returns an `ObservedCall`. The interpreter drops that
object as soon as the call has returned or raised. No traceback contains a frame of nbmem's between
torch's frames.

A lookup on the class, instead of on an instance just before a call, gets the original. An attribute
that other code has replaced since is not changed.

A scripted module would also refuse a hook, and a global hook takes all modules off torch's fast
path. Python calls signal handlers where functions begin, including finalizers. An exception raised
there, before the first `try`, is lost. So the end of a call is reported by a generator, which
resumes inside its `try`.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.compilations import skip_in_dynamo
from nbmem.core.runtime.bytecode import calls_at_once
from nbmem.core.runtime.entry_points import caller, entry, handle_exception
from nbmem.core.runtime.warning_filter import suppress_warnings

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault

    Ended = Callable[[], None]
    Begins = Callable[[Any, FrameType], Ended | None]


class ObservedCall(functools.partial):  # type: ignore[type-arg]
    """A callable for a single call, which reports the end of that call.

    It adds no frame of nbmem's.

    Attributes:
        tell: Reports the end. Called when the interpreter drops this object, without a function in
            between.
    """

    tell: Callable[[], object] = int
    __del__ = property(operator.attrgetter("tell"))


class CallState(threading.local):
    """A flag of each thread: true inside of a call that was reported.

    Nested calls are not reported.

    Attributes:
        busy: Whether a call was reported whose end was not reported yet.
        nested: Observes the calls inside it; None if they are not observed.
    """

    busy = False
    nested: Callable[[Any, Any], Any] | None = None


class MethodPatch:
    """A patch of a method that reports the calls of torch or the user.

    Of nested calls only the outermost is reported.

    Args:
        owner: The class.
        name: The method's name.
        begins: Called with the object and the calling frame before the call. Returns a function to
            call at its end, or None.
        on_fault: Records a note about a fault.
        by: The only code whose calls are reported; None for every lookup that a call follows.

    Attributes:
        nested: Asked once for each reported call; returns what observes the calls inside it, or
            None. That takes the object and the method and returns the method to call.
    """

    nested: Callable[[], Callable[[Any, Any], Any] | None] | None = None

    def __init__(
        self, owner: Any, name: str, begins: Begins, on_fault: OnFault, by: CodeType | None = None
    ) -> None:
        self._owner, self._name = owner, name
        self._original = owner.__dict__[name]
        self._begins = begins
        self._by = by
        self._inside = CallState()
        self._is_lent = False
        self.on_fault = on_fault

    def apply(self) -> None:
        """Set the patch, unless other code has replaced the original since."""
        cls = MethodPatch
        skip_in_dynamo(cls.__get__, cls.__call__, cls.__getattr__, report_end)
        self._is_lent = True
        if self._owner.__dict__.get(self._name) is self._original:
            setattr(self._owner, self._name, self)

    def revert(self) -> None:
        """Restore the original, unless other code has replaced the patch."""
        self._is_lent = False
        if self._owner.__dict__.get(self._name) is self:
            setattr(self._owner, self._name, self._original)

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        method = self._original.__get__(obj, kind)
        if obj is None:
            return method
        if self._inside.busy:  # the many calls inside a model's cost 0.2 us each
            nested = self._inside.nested
            return method if nested is None else nested(obj, method)
        return self._patched(obj, method, sys._getframe(1))  # noqa: SLF001 - the frame of the lookup

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, for calls through the class's dictionary."""
        return self._original(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._original)  # unittest.mock reads the class that it replaces

    def __getattr__(self, name: str) -> Any:
        # Dynamo's guards read `__defaults__` and the like from the class dictionary's entry.
        return getattr(object.__getattribute__(self, "_original"), name)

    def _as_before(self, _obj: Any, method: Any, _frame: FrameType) -> Any:
        return method

    @entry("the phases from here on", otherwise=_as_before)
    def _patched(self, obj: Any, method: Any, frame: FrameType) -> Any:
        if not self._is_lent:  # a patch of the user's own was removed after ours
            self.revert()
            return method
        code = frame.f_code
        if not (calls_at_once(code, frame.f_lasti) if self._by is None else code is self._by):
            return method
        on_end = self._begins(obj, frame)
        if on_end is None:
            return method
        call = observe_call(method, on_end, self.on_fault, self._inside)
        self._inside.nested = None if self.nested is None else self.nested()
        self._inside.busy = True  # last: an earlier interrupt ends the call
        return call


class AttributePatch:
    """A patch of an instance attribute that reports reads of it.

    Args:
        owner: The class, which has no such attribute itself.
        name: The attribute's name.
        read: Called with the object and the reading frame.
        by: File and function of the code whose reads are reported.
        on_fault: Records a note about a fault.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        read: Callable[[Any, FrameType], None],
        on_fault: OnFault,
        by: tuple[str, str],
    ) -> None:
        self._owner, self._name = owner, name
        self._read = read
        self._by = by
        self.on_fault = on_fault

    def apply(self) -> None:
        """Set the patch, unless the class has such an attribute."""
        cls = AttributePatch
        skip_in_dynamo(cls.__get__, cls.__set__, cls.__delete__)
        if self._name not in self._owner.__dict__:
            setattr(self._owner, self._name, self)

    def revert(self) -> None:
        """Remove the patch."""
        if self._owner.__dict__.get(self._name) is self:
            delattr(self._owner, self._name)

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        if obj is not None and self._name in obj.__dict__:
            self._notify(obj)
            return obj.__dict__[self._name]
        missing = kind if obj is None else type(obj)
        raise AttributeError(f"{missing.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self._name] = value

    def __delete__(self, obj: Any) -> None:
        if self._name not in obj.__dict__:
            raise AttributeError(self._name)
        del obj.__dict__[self._name]

    @entry("the optimizer's steps")
    def _notify(self, obj: Any) -> None:
        frame = caller()
        code = None if frame is None else frame.f_code
        if frame and code and (code.co_filename, code.co_name) == self._by:
            self._read(obj, frame)


def observe_call(
    method: Any, ended: Ended, on_fault: OnFault, inside: CallState | None = None
) -> ObservedCall:
    """Create a callable for a single call, which reports its end.

    It adds no frame of nbmem's.

    Args:
        method: The method to call.
        ended: Called at the end of the call.
        on_fault: Records a note about a fault.
        inside: The flag to clear at the end of the call.
    """
    call, end = ObservedCall(method), report_end(ended, on_fault, inside or CallState())
    next(end)
    call.tell = end.__next__
    return call


def report_end(ended: Ended, on_fault: OnFault, inside: CallState) -> Iterator[None]:
    """Report the end of a call when resumed, and never raise.

    Exceptions raised in a finalizer are lost. That includes a signal handler's, which Python calls
    where a function begins: before its first `try`. A generator resumes inside its own `try`.
    """
    again = []  # released at the generator's end: delivered in torch's frame
    try:
        yield
    except GeneratorExit:
        return
    except BaseException as err:  # noqa: BLE001 - from a signal, just now
        again.append(handle_exception(err, "the end of a phase", on_fault))
    inside.busy = False
    try:
        with suppress_warnings():
            ended()
    except BaseException as err:  # noqa: BLE001 - as above
        again.append(handle_exception(err, "the end of a phase", on_fault))
    yield
