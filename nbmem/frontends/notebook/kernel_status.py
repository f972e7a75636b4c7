"""Says after each cell what this kernel holds, for `nbmem gpus` in another process."""

from __future__ import annotations

import atexit
from functools import cache
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.entry_points import entry
from nbmem.frontends.notebook.error_boundary import guest, shell_entry

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.core.gpu_processes import Told
    from nbmem.frontends.notebook.tracer import Tracer


class Telling:
    """Writes a small file of the user's where torch holds memory of a card, and takes it away."""

    def __init__(self, shell: Any, tracer: Tracer) -> None:
        self._shell = shell
        self._tracer = tracer
        self._said: Told | None = None
        self._of: Trace | None = None
        self._held: tuple[tuple[str, int], ...] = ()

    @shell_entry("tell other processes what this kernel holds")
    def post_run_cell(self, _result: Any) -> None:
        """IPython has run a cell."""
        with guest("tell other processes what this kernel holds"):
            self._tell()

    def close(self) -> None:
        """Take the file away."""
        if self._said is not None:
            _fall_silent()
            self._said = None

    def _tell(self) -> None:
        from nbmem.capture import torch_cuda

        read = [torch_cuda.read_counters(index) for index in range(torch_cuda.device_count())]
        counters = [one for one in read if one is not None]
        reserved = sum(one.reserved for one in counters)
        if not reserved and self._said is None:
            return
        import psutil

        from nbmem.core.files.kernel_status import tell
        from nbmem.core.gpu_processes import Told

        told = Told(
            cell=f"In [{self._shell.execution_count - 1}]",
            held=self._last_held(),
            allocated=sum(one.allocated for one in counters),
            reserved=reserved,
        )
        _at_exit()
        self._said = told
        tell(told, began=psutil.Process().create_time())

    def _last_held(self) -> tuple[tuple[str, int], ...]:
        """What the last traced cell left on its fullest card, by category."""
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
    """Register once for the process: Python keeps the place of what is unregistered."""
    atexit.register(_fall_silent)


@entry("the file for other processes")
def _fall_silent() -> None:
    from nbmem.core.files.kernel_status import fall_silent

    fall_silent()
