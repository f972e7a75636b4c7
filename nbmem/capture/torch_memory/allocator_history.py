"""Record and take torch's allocator history.

It contains every alloc and free. It is taken when a cell ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmem.capture.patches.name_patches import FunctionPatch
from nbmem.capture.torch_cuda import allocator_backend, import_torch, initialized_torch
from nbmem.capture.torch_memory.cuda_initialization import on_cuda_initialized
from nbmem.core.errors import ProbeUnavailableError
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    from nbmem.capture.patches.compilations import OnFault


FIRST_ENTRIES = 4_000
"""Entries of a card's history whose stacks are taken in any recording: some steps of a loop. A
stack takes about a microsecond, so all of them take some milliseconds."""
VIRTUAL_FIRST_ENTRIES = 40_000
"""Entries of a virtual card's history whose stacks are taken in any recording. An operator takes a
hundred times as long there as a stack."""


class HistoryProbe:
    """A recording of torch's memory history.

    If the user already records it, nbmem joins: it changes no setting and leaves it on. If the user
    turns it on meanwhile, it is theirs from then on. If the user turns it off, nbmem continues. The
    entries that torch drops by that are retained.

    Args:
        max_entries: Size of torch's ring buffer (always bounded).
        stacks: Take a Python stack at each allocation (13% of a CPU-bound step on an H100 host; 4%
            without stacks).
        on_fault: Records a note about a fault during a call of torch's own code.

    Attributes:
        only_first_stacks: Whether stacks were taken until `end_stacks`, and were not requested.
    """

    def __init__(self, *, max_entries: int, stacks: bool, on_fault: OnFault) -> None:
        self.max_entries = max_entries
        self.stacks = stacks
        self.joined = False
        self.only_first_stacks = False
        self._stacks_ended = False
        self.on_fault = on_fault
        self._on = False
        self._cancel: Callable[[], None] | None = None
        self._calling = False
        self._watch: FunctionPatch | None = None
        self._earlier: dict[int, list[Any]] = {}  # by card, entries that torch has dropped

    def start(self) -> None:
        """Record at once, or from when the user's code initializes CUDA.

        Raises:
            ProbeUnavailableError: torch is missing, or has no CUDA and no history.
        """
        torch: Any = import_torch()
        if torch is None:
            raise ProbeUnavailableError(
                "torch is not installed here, so there is no GPU memory to trace. "
                "Install torch in the kernel's environment and trace the cell again."
            )
        if not hasattr(torch.cuda.memory, "_record_memory_history"):
            raise ProbeUnavailableError(
                f"torch {torch.__version__} keeps no memory history (2.6 or newer does). "
                "Update torch; until then only the deltas of cells are shown."
            )
        # Before CUDA is initialized there is no allocator to record.
        self._cancel = on_cuda_initialized(self._begin)

    @entry("the memory history")
    def _begin(self) -> None:
        if (
            allocator_backend() != "native"
        ):  # the registry is used, see capture/devices/accelerators.py
            return
        torch: Any = initialized_torch() or import_torch()
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
        self.joined = bool(enabled is not None and enabled())
        self._on = True
        if not self.joined:
            self.only_first_stacks = not self.stacks and _keeps_entries(torch)
            self._record_all()
        if hasattr(torch._C, "_cuda_record_memory_history"):  # noqa: SLF001
            self._watch = FunctionPatch(
                torch._C,  # noqa: SLF001
                "_cuda_record_memory_history",
                self._users_call,
                self.on_fault,
            )
            self._watch.apply()

    def _users_call(self, enabled: Any = None, *_args: Any, **_: Any) -> Callable[[], None] | None:
        """Handle the user's own call that turns the history on or off.

        If it turns the history on, nbmem no longer turns it off. If it turns it off, nbmem turns it
        on again. Returns a function to call afterwards; None for nbmem's own calls.
        """
        if self._calling or not self._on:
            return None
        before = _traces(self._snapshot())

        def after() -> None:
            self.joined = enabled is not None
            self.only_first_stacks &= not self.joined
            if enabled is None:
                self._record_all()
            for card, trace in enumerate(_traces(self._snapshot())):
                if card < len(before) and len(trace) < len(before[card]):
                    self._earlier.setdefault(card, []).extend(before[card])

        return after

    @property
    def takes_first_stacks(self) -> bool:
        """True while stacks are taken that were not requested."""
        return self._on and self.only_first_stacks and not self._stacks_ended

    def end_stacks(self) -> None:
        """Take no more stacks, unless they were requested."""
        if self.takes_first_stacks:
            self._stacks_ended = True
            self._record_all()

    def _record_all(self) -> None:
        stacks = self.stacks or self.takes_first_stacks
        self._record("all", "alloc" if stacks else None)

    def _record(self, enabled: str | None, context: str | None = None) -> None:
        torch: Any = import_torch()
        record = torch.cuda.memory._record_memory_history  # noqa: SLF001
        self._calling = True
        try:
            if enabled is None:
                record(None)
            else:
                record(enabled, context=context, stacks="python", max_entries=self.max_entries)
        finally:
            self._calling = False

    @property
    def recording(self) -> bool:
        """True from the start of the recording to its end."""
        return self._on

    def take(self) -> dict[str, Any] | None:
        """Take torch's memory snapshot; None without the native allocator.

        Also None before CUDA is initialized. It has the segments and the history of every device,
        with entries that torch has cleared meanwhile.
        """
        found = self._snapshot()
        if found is not None and self._earlier:
            traces = enumerate(_traces(found))
            found["device_traces"] = [[*self._earlier.get(i, ()), *trace] for i, trace in traces]
        return found

    def _snapshot(self) -> dict[str, Any] | None:
        torch: Any = initialized_torch()
        if torch is None or allocator_backend() != "native":
            return None
        return dict(torch.cuda.memory._snapshot())  # noqa: SLF001

    def stop(self) -> None:
        """Turn the history off, unless it is the user's."""
        if self._cancel is not None:
            self._cancel()
        if self._watch is not None:
            self._watch.revert()
        if self._on and not self.joined:
            self._record(None)
        self._on = False


def _keeps_entries(torch: Any) -> bool:
    """Return whether a change of settings keeps the history's entries.

    Releases without this parameter clear them.
    """
    record = torch.cuda.memory._record_memory_history  # noqa: SLF001
    return "clear_history" in inspect.signature(record).parameters


def _traces(snapshot: dict[str, Any] | None) -> list[Any]:
    """Return a snapshot's history: one trace per device."""
    return (snapshot or {}).get("device_traces") or []
