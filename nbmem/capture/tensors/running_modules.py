"""Record which module runs while an autograd node is created.

torch numbers the nodes of a thread consecutively. The number of the next node, read where a module
is called and where it returns, shows the innermost module that created a node. A graph alone shows
a module only where the node takes a trained parameter.

Calls inside an outermost one are recorded only while graphs of new kinds are read, at 1 us each.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.method_patches import ObservedCall
from nbmem.capture.torch_cuda import loaded_torch

if TYPE_CHECKING:
    _Running = tuple[weakref.ref[Any], "_Running | None"]
    """A module that runs, and the one that called it."""

MAX_ENTRIES = 40_000
"""Entries of a thread's record, three for each call. Then the older half is dropped."""
MAX_OF_CALL = 4 * MAX_ENTRIES
"""Entries up to which the calls inside an outermost one are recorded."""
BACKWARDS = 8
"""Backwards, after one of a new kind, whose forwards are recorded with the calls inside."""


class _ThreadCalls:
    """The calls of one thread.

    A call's beginning is a weak reference to its module and the number of the next node. Its end is
    a number alone. None precedes each outermost call. Ends are appended by C code: no function of
    nbmem's runs where a call returns, so no exception of a signal handler is lost there.
    """

    def __init__(self) -> None:
        torch: Any = loaded_torch()
        self.entries: list[Any] = []
        self.inside = False
        self.next_nr = getattr(torch._C._autograd, "_get_sequence_nr", None)  # noqa: SLF001
        numbers = iter(()) if self.next_nr is None else iter(self.next_nr, -1)  # none is -1
        self.end = map(self.entries.append, numbers).__next__

    def begin(self, module: Any) -> None:
        self.entries += (weakref.ref(module), self.next_nr())  # type: ignore[misc]

    def observed(self, module: Any, method: Any) -> Any:
        """Return a method for one call, whose beginning and end are recorded."""
        if len(self.entries) >= MAX_OF_CALL:
            return method
        call = ObservedCall(method)
        self.begin(module)
        call.tell = self.end
        return call


class ModuleCalls:
    """Records the calls of modules in each thread.

    Attributes:
        wanted: Number of backwards to come whose forwards are recorded with the calls inside.
    """

    def __init__(self) -> None:
        self.wanted = BACKWARDS
        self._local = threading.local()

    def _calls(self) -> _ThreadCalls:
        calls: _ThreadCalls | None = getattr(self._local, "calls", None)
        if calls is None:
            calls = self._local.calls = _ThreadCalls()
        return calls

    def begin(self, module: Any, *, grad: bool) -> Callable[[], object]:
        """Record the beginning of an outermost call; return what records its end.

        Args:
            module: The module.
            grad: Whether its operators create nodes.
        """
        thread_calls = self._calls()
        self._local.observer = None
        if thread_calls.next_nr is None or not grad:
            return int
        if len(thread_calls.entries) >= MAX_ENTRIES:
            del thread_calls.entries[: len(thread_calls.entries) // 2]
        thread_calls.entries.append(None)
        thread_calls.begin(module)
        if self.wanted > 0:
            thread_calls.inside = True
            self._local.observer = thread_calls.observed
        return thread_calls.end

    def observer(self) -> Callable[[Any, Any], Any] | None:
        """Return what observes the calls inside the present outermost one.

        It takes a module and its method, and returns the method to call. None if these calls are
        not recorded.
        """
        observer: Callable[[Any, Any], Any] | None = getattr(self._local, "observer", None)
        return observer

    def ends_in_backward(self) -> bool:
        """Return whether calls inside were recorded since the last backward."""
        thread_calls = self._calls()
        inside, thread_calls.inside = thread_calls.inside or thread_calls.next_nr is None, False
        return inside

    def innermost(self) -> InnermostModules:
        """Return the record of this thread."""
        return InnermostModules(self._calls().entries)


class InnermostModules:
    """The innermost module that ran when a node was created.

    Args:
        entries: What `ModuleCalls` has recorded in the node's thread.
    """

    def __init__(self, entries: list[Any]) -> None:
        self._numbers: list[int] = []
        self._running: list[_Running | None] = []
        self._every: dict[int, weakref.ref[Any]] = {}
        now: _Running | None = None
        began = False
        for entry in entries:
            if entry is None:
                now = None
            elif type(entry) is not int:
                now = entry, now
                self._every[id(entry)] = entry
            elif not began and now is not None:
                now = now[1]
            began = entry is not None and type(entry) is not int
            if type(entry) is int:
                self._numbers.append(entry)
                self._running.append(now)

    def covers(self, number: int) -> bool:
        """Return whether calls were recorded when a node was created."""
        return bool(self._numbers) and self._numbers[0] <= number

    def at(self, number: int) -> Iterator[Any]:
        """Yield the modules that ran when a node was created, innermost first.

        Those that have been freed are omitted, such as a criterion that a forward creates.
        """
        index = bisect_right(self._numbers, number) - 1
        now = self._running[index] if index >= 0 else None
        while now is not None:
            module = now[0]()
            if module is not None:
                yield module
            now = now[1]

    def called(self) -> list[Any]:
        """Return the modules that were called and still live, each once."""
        return [module for ref in self._every.values() if (module := ref()) is not None]
