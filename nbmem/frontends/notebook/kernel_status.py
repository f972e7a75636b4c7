"""Write a status file after each cell, for `nbmem gpus` elsewhere.

The file describes this kernel's memory; another process reads it.
"""

from __future__ import annotations

import atexit
from functools import cache
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.entry_points import entry
from nbmem.frontends.notebook.error_boundary import error_boundary, shell_entry

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.core.gpu_processes import KernelStatus
    from nbmem.frontends.notebook.tracer import Tracer


class KernelStatusWriter:
    """The writer of this kernel's status file.

    The file exists while torch holds memory of a card; closing removes it.
    """

    def __init__(self, shell: Any, tracer: Tracer) -> None:
        self._shell = shell
        self._tracer = tracer
        self._latest: KernelStatus | None = None
        self._of: Trace | None = None
        self._held: tuple[tuple[str, int], ...] = ()

    @shell_entry("tell other processes what this kernel holds")
    def post_run_cell(self, _result: Any) -> None:
        """Update the status file after a cell."""
        with error_boundary("tell other processes what this kernel holds"):
            self._write()

    def close(self) -> None:
        """Remove the status file."""
        if self._latest is not None:
            _remove_status()
            self._latest = None

    def _write(self) -> None:
        from nbmem.capture import torch_cuda

        read = [torch_cuda.read_counters(index) for index in range(torch_cuda.device_count())]
        counters = [one for one in read if one is not None]
        reserved = sum(one.reserved for one in counters)
        if not reserved and self._latest is None:
            return
        import psutil

        from nbmem.core.files.kernel_status import write_status
        from nbmem.core.gpu_processes import KernelStatus

        status = KernelStatus(
            cell=f"In [{self._shell.execution_count - 1}]",
            held=self._last_held(),
            allocated=sum(one.allocated for one in counters),
            reserved=reserved,
        )
        _at_exit()
        self._latest = status
        write_status(status, began=psutil.Process().create_time())

    def _last_held(self) -> tuple[tuple[str, int], ...]:
        """Return what the last traced cell left on its card, by category.

        It is the card that its report shows. Empty if that is not a CUDA card.
        """
        last = self._tracer.last
        if last is not None and last.cell is not None and last is not self._of:
            from nbmem.core.session.categories import LIVE

            self._of = last
            report = last.report()
            held = [(c.label, report.ledger_at_end[c]) for c in LIVE]
            if report.device.kind != "cuda":
                held = []
            self._held = tuple(sorted(((n, s) for n, s in held if s), key=lambda one: -one[1]))
        return self._held


@cache
def _at_exit() -> None:
    """Register the file's removal at exit, once for the process.

    Python retains the slot of an unregistered function.
    """
    atexit.register(_remove_status)


@entry("the file for other processes")
def _remove_status() -> None:
    from nbmem.core.files.kernel_status import remove_status

    remove_status()
