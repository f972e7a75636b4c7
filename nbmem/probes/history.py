"""The allocator's own history: every alloc and free, recorded by torch, taken when a cell ends."""

from __future__ import annotations

from typing import Any

from nbmem.core.errors import ProbeUnavailableError
from nbmem.probes.cuda import import_torch, initialized_torch


class HistoryProbe:
    """Turns torch's memory history on and off, and takes it.

    If the user records it already, nbmem joins: it changes no setting and leaves it on.

    Args:
        max_entries: Size of the ring that torch keeps (always bounded).
        stacks: Take a Python stack at each allocation (13% of a CPU-bound step on an H100 host;
            without stacks 4%).
    """

    def __init__(self, *, max_entries: int, stacks: bool) -> None:
        self.max_entries = max_entries
        self.stacks = stacks
        self.joined = False
        self._on = False
        self._waiting = False

    def start(self) -> None:
        """Record from now on, or from the moment in which the user's code initializes CUDA.

        Raises:
            ProbeUnavailableError: torch is not there, or has no CUDA and no history.
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
        self._waiting = True
        # Before CUDA is initialized there is no allocator to record, and nbmem must not be the
        # one to make a context: torch runs this at the end of its own initialization.
        torch.cuda._lazy_call(self._begin)  # noqa: SLF001

    def _begin(self) -> None:
        if not self._waiting:  # stopped before CUDA came up
            return
        self._waiting = False
        torch: Any = initialized_torch() or import_torch()
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # noqa: SLF001
        self.joined = bool(enabled is not None and enabled())
        if not self.joined:
            self._record("alloc" if self.stacks else None)
        self._on = True

    def _record(self, context: str | None) -> None:
        torch: Any = import_torch()
        torch.cuda.memory._record_memory_history(  # noqa: SLF001
            "all", context=context, stacks="python", max_entries=self.max_entries
        )

    def drop_stacks(self) -> None:
        """Go on without stacks, where nbmem itself began to take them."""
        if self._on and not self.joined and self.stacks:
            self._record(None)

    @property
    def recording(self) -> bool:
        """Whether torch records at this moment."""
        return self._on

    def take(self) -> dict[str, Any] | None:
        """Take torch's snapshot (segments and history of every device); None without CUDA."""
        torch: Any = initialized_torch()
        if torch is None:
            return None
        return dict(torch.cuda.memory._snapshot())  # noqa: SLF001

    def stop(self) -> None:
        """Turn the history off, unless it is the user's."""
        self._waiting = False
        if self._on and not self.joined:
            torch: Any = import_torch()
            torch.cuda.memory._record_memory_history(None)  # noqa: SLF001
        self._on = False
