"""Patch names and functions in torch's modules for a while."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.compilations import skip_in_dynamo
from nbmem.capture.patches.method_patches import observe_call, report_end
from nbmem.core.runtime.entry_points import caller, entry
from nbmem.core.runtime.warning_filter import pass_warnings

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault
    from nbmem.capture.patches.method_patches import Ended


class NamePatch:
    """A patch of a module name that reports calls of one method behind it.

    Args:
        module: The module.
        name: The name in it.
        path: Attributes from the object to the method: `("_execution_engine",
            "run_backward")`.
        begins: Called with the calling frame before each call; returns the callback for its
            end, or None.
        on_fault: Records a fault.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        path: tuple[str, ...],
        begins: Callable[[FrameType], Ended | None],
        on_fault: OnFault,
    ) -> None:
        self._module, self._name = module, name
        self._stand_in = _StandIn(getattr(module, name), path, begins, on_fault)

    def apply(self) -> None:
        """Install the patch, unless other code has replaced the name since."""
        skip_in_dynamo(report_end)
        if getattr(self._module, self._name, None) is self._stand_in.original:
            setattr(self._module, self._name, self._stand_in)

    def revert(self) -> None:
        """Restore the original, unless other code has replaced the name since."""
        if getattr(self._module, self._name, None) is self._stand_in:
            setattr(self._module, self._name, self._stand_in.original)


class _StandIn:
    """A proxy that reports calls at one path and delegates all else."""

    def __init__(
        self,
        original: Any,
        path: tuple[str, ...],
        begins: Callable[[FrameType], Ended | None],
        on_fault: OnFault,
    ) -> None:
        self.original = original
        self._path = path
        self._begins = begins
        self.on_fault = on_fault

    def __repr__(self) -> str:
        return repr(self.original)

    def __dir__(self) -> list[str]:
        return dir(self.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)

    def __instancecheck__(self, obj: Any) -> bool:
        return isinstance(obj, self.original)

    def _as_before(self, name: str) -> Any:
        return getattr(self.original, name)

    @entry("the phases from here on", otherwise=_as_before)
    def __getattr__(self, name: str) -> Any:
        with pass_warnings():
            found = getattr(self.original, name)
        if name != self._path[0]:
            return found
        if len(self._path) > 1:
            return _StandIn(found, self._path[1:], self._begins, self.on_fault)
        frame = caller()
        ended = None if frame is None else self._begins(frame)
        return found if ended is None else observe_call(found, ended, self.on_fault)


class FunctionPatch:
    """A patch of a function in a module that reports each call.

    It is for functions that only torch itself looks up.

    Args:
        module: The module.
        name: The function's name.
        on_call: Called with the arguments before the call; returns a callback for its success,
            or None.
        on_fault: Records a fault.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        on_call: Callable[..., Callable[[], None] | None],
        on_fault: OnFault,
    ) -> None:
        self._module, self._name = module, name
        self._on_call = on_call
        self.on_fault = on_fault
        self._original: Any = None
        self._wrapper: Any = None

    def apply(self) -> None:
        """Install the patch."""
        original = self._original = getattr(self._module, self._name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            after = self._notify(args, kwargs)
            found = original(*args, **kwargs)
            if after is not None:
                self._end(after)
            return found

        skip_in_dynamo(wrapper)
        self._wrapper = wrapper
        setattr(self._module, self._name, wrapper)

    def revert(self) -> None:
        """Restore the function, unless other code has replaced it since."""
        if self._wrapper is not None and getattr(self._module, self._name, None) is self._wrapper:
            setattr(self._module, self._name, self._original)

    @entry("what became of the memory history")
    def _notify(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[[], None] | None:
        return self._on_call(*args, **kwargs)

    @entry("what became of the memory history")
    def _end(self, after: Callable[[], None]) -> None:
        after()
