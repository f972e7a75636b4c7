"""NVML answered by the virtual card: the few functions of pynvml that nbmem and its users call."""

from __future__ import annotations

import os
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.virtual.device import VirtualGPU

DRIVER = "580.159.04"
"""The driver of the recordings (tests/recordings)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What nvmlDeviceGetMemoryInfo returns; bytes."""

    total: int
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class Process:
    """What nvmlDeviceGetComputeRunningProcesses lists; bytes."""

    pid: int
    usedGpuMemory: int  # noqa: N815 - NVML's name
    gpuInstanceId: int = 0xFFFFFFFF  # noqa: N815
    computeInstanceId: int = 0xFFFFFFFF  # noqa: N815


class VirtualNVMLError(Exception):
    """The base of NVML's errors where pynvml is not installed."""

    value = 999


@dataclass(frozen=True, slots=True)
class _Handle:
    index: int


def functions_of(gpu: VirtualGPU, error: type[Exception]) -> dict[str, Any]:
    """The functions, by their NVML names."""

    def handle_by_index(index: int) -> _Handle:
        if index != 0:
            raise error(2)  # NVML_ERROR_INVALID_ARGUMENT
        return _Handle(0)

    def memory(handle: Any, version: Any = None) -> Memory:
        del handle, version
        used = gpu.nvml_used
        return Memory(gpu.card.nvml_total, gpu.card.nvml_total - used, used)

    def processes(handle: Any) -> list[Process]:
        del handle
        mine = [Process(os.getpid(), gpu.process_bytes)] if gpu.initialized else []
        return mine + [Process(pid, size) for pid, size in gpu.other_processes.items()]

    return {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": handle_by_index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: _Handle(0),
        "nvmlDeviceGetIndex": lambda handle: 0,
        "nvmlDeviceGetName": lambda handle: gpu.card.name,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{gpu.uuid}",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: [],
        "nvmlDeviceGetCudaComputeCapability": lambda handle: gpu.card.capability,
    }


def stand_in_module(gpu: VirtualGPU) -> types.ModuleType:
    """A module called pynvml, for machines without the real one."""
    module = types.ModuleType("pynvml")
    module.__dict__["NVMLError"] = VirtualNVMLError
    module.__dict__.update(functions_of(gpu, VirtualNVMLError))
    return module


def real_module() -> Any:
    """The installed pynvml, or None."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
