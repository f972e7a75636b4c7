"""NVML for virtual cards: the functions of pynvml in common use."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine

DRIVER = "580.159.04"
"""The driver of the recordings (tests/recordings)."""


MEMORY_V2 = 0x2000028
"""pynvml's nvmlMemory_v2: it separates the driver's own bytes from those in use."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes as nvmlDeviceGetMemoryInfo returns them.

    The bytes of the driver itself are among those in use.
    """

    total: int
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class MemoryV2(Memory):
    """A card's memory as drivers since 510 report it, with reserved bytes.

    The driver's own bytes are reserved and not in use.
    """

    reserved: int
    version: int = MEMORY_V2


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """An entry of nvmlDeviceGetComputeRunningProcesses; memory in bytes."""

    pid: int
    usedGpuMemory: int  # noqa: N815 - NVML's name
    gpuInstanceId: int = 0xFFFFFFFF  # noqa: N815
    computeInstanceId: int = 0xFFFFFFFF  # noqa: N815


@dataclass(frozen=True, slots=True)
class Utilization:
    """Utilization in percent, as nvmlDeviceGetUtilizationRates returns it."""

    gpu: int = 0
    memory: int = 0


class VirtualNVMLError(Exception):
    """The base of NVML's errors where pynvml is not installed."""

    value = 999


@dataclass(frozen=True, slots=True)
class _Handle:
    index: int


def functions_of(machine: Machine, error: type[Exception]) -> dict[str, Any]:
    """Return the NVML functions of a machine, by their NVML names."""
    gpus = machine.gpus
    handles = tuple(_Handle(gpu.index) for gpu in gpus)

    def handle_where(fits: Callable[[VirtualGPU], bool]) -> _Handle:
        for gpu, handle in zip(gpus, handles, strict=True):
            if fits(gpu):
                return handle
        raise error(2)  # NVML_ERROR_INVALID_ARGUMENT

    def memory(handle: _Handle, version: Any = None) -> Memory:
        gpu = gpus[handle.index]
        total, driver, used = gpu.card.nvml_total, gpu.card.driver_bytes, gpu.nvml_used
        if version is None:
            return Memory(total, total - used, used)
        return MemoryV2(total, total - used, used - driver, driver)

    def processes(handle: _Handle) -> list[ListedProcess]:
        gpu = gpus[handle.index]
        mine = [ListedProcess(os.getpid(), gpu.process_bytes)] if gpu.initialized else []
        return mine + [ListedProcess(pid, size) for pid, size in gpu.other_processes.items()]

    return {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: handle_where(lambda gpu: gpu.index == index),
        "nvmlDeviceGetHandleByUUID": lambda uuid: handle_where(
            lambda gpu: _text(uuid) == f"GPU-{gpu.uuid}"
        ),
        "nvmlDeviceGetHandleByPciBusId": lambda bus: handle_where(
            lambda gpu: _text(bus).upper().endswith(f"{gpu.pci_bus:02X}:00.0")
        ),
        "nvmlDeviceGetIndex": lambda handle: handle.index,
        "nvmlDeviceGetName": lambda handle: gpus[handle.index].card.name,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{gpus[handle.index].uuid}",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
        # Nothing runs there: a card that waits.
        "nvmlDeviceGetUtilizationRates": lambda handle: Utilization(),
        "nvmlDeviceGetTemperature": lambda handle, sensor=0: 40,
        "nvmlDeviceGetPowerUsage": lambda handle: 60_000,
        "nvmlDeviceGetClockInfo": lambda handle, kind=0: 1500,
        # A tuner estimates with it which configurations are worth a try.
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind=0: 1500,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: gpus[handle.index].card.capability,
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def stand_in_module(machine: Machine) -> types.ModuleType:
    """Create a module named pynvml, for use without the real one."""
    module = types.ModuleType("pynvml")
    for name in ("NVMLError", "NVMLError_DriverNotLoaded"):
        module.__dict__[name] = VirtualNVMLError
    module.__dict__["nvmlMemory_v2"] = MEMORY_V2
    module.__dict__.update(functions_of(machine, VirtualNVMLError))
    return module


def real_module() -> Any:
    """Return the installed pynvml, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
