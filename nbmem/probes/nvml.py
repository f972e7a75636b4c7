"""NVML: the whole card, this process and the others, read without creating a CUDA context.

NVML counts what nvidia-smi shows. In a container it may show host PIDs or no process memory at all;
then this process's figure is None, never 0.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from nbmem.core.errors import ProbeUnavailableError
from nbmem.probes import host
from nbmem.probes.cuda import initialized_torch


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One reading of a whole card.

    Attributes:
        total: The card's bytes.
        used: Bytes in use by anybody, the driver among them.
        driver: Bytes that the driver and the card's firmware keep for themselves; 0 where it does
            not say (before release 510), so that they count as other processes.
        process: Bytes of this process; None where the driver does not say.
        others: Bytes of other processes by name, where visible.
    """

    total: int
    used: int
    driver: int
    process: int | None
    others: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that NVML sees.

    Attributes:
        index: NVML's index.
        name: The driver's name.
        total: Bytes.
        driver: Version of the driver.
    """

    index: int
    name: str
    total: int
    driver: str


class NvmlProbe:
    """Reads cards by CUDA ordinal; opens NVML at the first reading.

    Raises (from every method):
        ProbeUnavailableError: NVML or the card cannot be read here.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}

    def cards(self) -> tuple[Card, ...]:
        """Every card of the machine, whether torch may use it or not."""
        nvml = self._open()
        try:
            driver = _text(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            return tuple(
                Card(
                    index=index,
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    total=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    driver=driver,
                )
                for index, handle in enumerate(handles)
            )
        except nvml.NVMLError as err:
            raise _unavailable(err) from err

    def read(self, ordinal: int, *, others: bool = False) -> CardReading:
        """Read one card (7 us; with the list of processes 50 to 70 us on an H100's host).

        Args:
            ordinal: CUDA ordinal.
            others: Name the other processes, too.
        """
        nvml = self._open()
        try:
            handle = self._handle(ordinal)
            total, free, driver = self._memory(handle)
            held = self._processes(handle)
        except nvml.NVMLError as err:
            raise _unavailable(err) from err
        return CardReading(
            total=total,
            used=total - free,
            driver=driver,
            process=held.pop(os.getpid(), None) or None,
            others={host.process_name(pid): size for pid, size in held.items() if size}
            if others
            else {},
        )

    def other_processes(self, ordinal: int) -> dict[int, int]:
        """Bytes of the other processes on a card by PID, where the driver says them."""
        nvml = self._open()
        try:
            held = self._processes(self._handle(ordinal))
        except nvml.NVMLError as err:
            raise _unavailable(err) from err
        return {pid: size for pid, size in held.items() if size and pid != os.getpid()}

    def close(self) -> None:
        """Let NVML go; the next reading opens it again."""
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            self._handles.clear()
            nvml.nvmlShutdown()

    def _open(self) -> Any:
        if self._nvml is None:
            try:
                import pynvml
            except ImportError as err:
                raise ProbeUnavailableError(
                    "The package nvidia-ml-py is not installed, so the process and device figures "
                    "of nvidia-smi are missing; torch's own counters still work. "
                    "Install nvidia-ml-py to have them."
                ) from err
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as err:
                raise _unavailable(err) from err
            self._nvml = pynvml
        return self._nvml

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """(total, free, kept by the driver), as nvidia-smi has them since driver 510."""
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except (AttributeError, nvml.NVMLError):  # an older package, or an older driver
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.free), int(getattr(memory, "reserved", 0))

    def _handle(self, ordinal: int) -> Any:
        """NVML's handle for a CUDA ordinal: by UUID where torch knows it, for the orders differ."""
        if ordinal not in self._handles:
            self._handles[ordinal] = _handle_by_uuid(
                self._nvml, ordinal
            ) or self._nvml.nvmlDeviceGetHandleByIndex(_nvml_index(ordinal))
        return self._handles[ordinal]

    def _processes(self, handle: Any) -> dict[int, int]:
        """Bytes by PID, compute and graphics; PIDs whose figure is hidden are left out."""
        held: dict[int, int] = {}
        for ask in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
        ):
            if not hasattr(self._nvml, ask):
                continue
            try:
                running = getattr(self._nvml, ask)(handle)
            except self._nvml.NVMLError:  # MIG and some containers refuse; the card's totals stay
                continue
            for process in running:
                if process.usedGpuMemory is not None:
                    held[process.pid] = max(held.get(process.pid, 0), int(process.usedGpuMemory))
        return held


def _handle_by_uuid(nvml: Any, ordinal: int) -> Any:
    torch: Any = initialized_torch()
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None) if torch else None
    if uuid is None or not hasattr(nvml, "nvmlDeviceGetHandleByUUID"):
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:  # noqa: BLE001 - a MIG slice has another form of UUID: the index serves
        return None


def _nvml_index(ordinal: int) -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = [part.strip() for part in visible.split(",") if part.strip()]
    if ordinal < len(listed) and listed[ordinal].isdigit():
        return int(listed[ordinal])
    return ordinal


def _text(value: Any) -> str:
    """NVML's older bindings answer with bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _unavailable(err: Exception) -> ProbeUnavailableError:
    return ProbeUnavailableError(
        f"NVML cannot be read ({err}). The process and device figures of nvidia-smi are missing; "
        "torch's own counters still work. Check that nvidia-smi runs in this environment."
    )
