"""torch.cuda's functions, answered by the virtual cards.

These are the C functions that torch.cuda calls, and a few in Python. On a CPU-only build the C
functions do not exist: they are added while a card is active, and removed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.allocator.conf_parser import MalformedSettings
from nbmem.allocator.settings import AllocatorSettings, conf_of_environment
from nbmem.core.errors import UsageError
from nbmem.virtual.hardware.snapshot import snapshot_of
from nbmem.virtual.patches.cuda_api.generators import card_generators
from nbmem.virtual.patches.cuda_api.library_settings import plan_patches, setting_functions
from nbmem.virtual.patches.cuda_api.runtime import Cudart, DeviceProperties
from nbmem.virtual.patches.cuda_api.stream_api import stream_functions, stream_patches
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.warnings import UNCACHED

if TYPE_CHECKING:
    from nbmem.allocator.caching import CachingAllocator
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.tensors.host.pinned import Pinned


_REFUSED = ValueError if hasattr(torch._C, "_accelerator_setAllocatorSettings") else RuntimeError
"""How torch refuses a setting: by its class since all accelerators share them."""


def _devices(machine: Machine) -> dict[str, Any]:
    """Return the C functions that select and describe cards."""
    return {
        "_cuda_init": machine.initialize,
        "_cuda_getDeviceCount": lambda: len(machine.gpus),
        "_cuda_getDevice": lambda: machine.current.index,
        "_cuda_setDevice": machine.select,
        "_cuda_exchangeDevice": machine.select,
        "_cuda_maybeExchangeDevice": lambda device: machine.select(device, touch=False),
        "_cuda_isInBadFork": lambda: machine.bad_fork,
        "_cuda_canDeviceAccessPeer": machine.peers,
        "_cuda_getArchFlags": lambda: " ".join(
            sorted({"sm_{}{}".format(*gpu.card.capability) for gpu in machine.gpus})
        ),
        "_cuda_synchronize": lambda: _synchronize(machine.current),
    }


def _synchronize(gpu: VirtualGPU) -> None:
    gpu.capture.check_wait(gpu.stream.handle)
    gpu.synchronize()


def _allocator(machine: Machine, device: int | None) -> CachingAllocator:
    if device is not None and not 0 <= device < len(machine.gpus):
        raise RuntimeError(f"Invalid device argument {device}: did you call init?")
    return machine.gpu_to_read(device).allocator


def _resets(machine: Machine) -> dict[str, Any]:
    """Return the C functions that empty caches and reset statistics.

    torch.cuda and torch.accelerator call them by names of their own.
    """

    def empty_cache() -> None:
        for gpu in machine.gpus:
            gpu.empty_cache()

    def reset_peaks(device: int | None = None) -> None:
        _allocator(machine, device).reset_peak_stats()

    def reset_accumulated(device: int | None = None) -> None:
        _allocator(machine, device).reset_accumulated_stats()

    return {
        "_cuda_emptyCache": empty_cache,
        "_accelerator_emptyCache": empty_cache,
        "_cuda_resetPeakMemoryStats": reset_peaks,
        "_accelerator_resetPeakStats": reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": reset_accumulated,
        "_accelerator_resetAccumulatedStats": reset_accumulated,
    }


def _statistics(machine: Machine) -> dict[str, Any]:
    """Return the C functions of allocator statistics and settings."""

    def allocator(device: int | None = None) -> CachingAllocator:
        return _allocator(machine, device)

    def attach(observer: Any) -> None:
        for gpu in machine.gpus:
            gpu.oom_observers.append(observer)

    def set_settings(conf: str) -> None:
        for gpu in machine.gpus:
            gpu.read_environment()  # its settings are applied first, as in torch
            try:
                gpu.allocator.set_settings(conf)
            except MalformedSettings as err:
                raise RuntimeError(str(err)) from None
            except UsageError as err:
                raise _REFUSED(str(err)) from None

    def delete(pointer: int) -> None:
        try:
            machine.give(pointer)
        except (UsageError, IndexError):
            raise RuntimeError(f"invalid device pointer: {pointer:#x}") from None

    caching = {"on": True}

    def enable(wanted: bool) -> None:  # noqa: FBT001 - torch's signature
        caching["on"] = wanted
        if not wanted:
            machine.current.note(UNCACHED)

    def backend() -> str:
        # torch reads this one setting when it is loaded, and the others at the card's first use.
        AllocatorSettings.parse(conf_of_environment(), machine.current.release)
        return "native"

    def clear_workspaces() -> None:
        for gpu in machine.gpus:
            gpu.workspaces.clear()

    return {
        "_cuda_memoryStats": lambda device=None: allocator(device).memory_stats(),
        "_cuda_setMemoryFraction": lambda fraction, device=None: allocator(
            device
        ).set_memory_fraction(fraction),
        "_cuda_getMemoryFraction": lambda device=None: machine.gpu(device).fraction,
        "_cuda_clearCublasWorkspaces": clear_workspaces,
        "_cuda_attach_out_of_memory_observer": attach,
        "_cuda_cudaCachingAllocator_set_allocator_settings": set_settings,
        "_accelerator_setAllocatorSettings": set_settings,
        "_cuda_cudaCachingAllocator_raw_alloc": lambda size, stream: machine.current.take(
            size, int(stream)
        ),
        "_cuda_cudaCachingAllocator_raw_delete": delete,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: caching["on"],
        "_cuda_cudaCachingAllocator_enable": enable,
        "_cuda_getAllocatorBackend": backend,
    }


def _history(machine: Machine) -> dict[str, Any]:
    """Return the C functions of the memory history and snapshots.

    torch enables or disables the history for all cards at once.
    """
    histories = tuple(gpu.history for gpu in machine.gpus)

    def record_history(  # noqa: PLR0913 - torch's signature
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 1 << 62,
        clear_history: bool = False,  # noqa: FBT001, FBT002
        compile_context: bool = False,  # noqa: FBT001, FBT002
        global_record_annotations: bool = False,  # noqa: FBT001, FBT002
        skip_actions: list[str] | None = None,
        *_newer: Any,
    ) -> None:
        del compile_context, global_record_annotations
        for history in histories:
            history.configure(
                enabled,
                context,
                max_entries,
                cpp=stacks == "all",
                clear=clear_history,
                skip=list(skip_actions or []),
            )

    def memory_snapshot(wanted_pool: Any = None) -> dict[str, Any]:
        if wanted_pool is None:
            return snapshot_of(machine)
        *pool, traces = (*wanted_pool, True)[:3] if len(wanted_pool) < 3 else wanted_pool
        return snapshot_of(machine, traces=bool(traces), pool=tuple(pool))

    def traceback(addr: int) -> Any:
        return next((found for h in histories if (found := h.frames_at(addr))), None)

    def set_label(text: str) -> None:
        histories[0].label = text

    return {
        "_cuda_memorySnapshot": memory_snapshot,
        "_cuda_record_memory_history": record_history,
        "_cuda_isHistoryEnabled": lambda: histories[0].enabled is not None,
        "_cuda_allocationTraceback": traceback,
        "_cuda_setMemoryMetadata": set_label,
        "_cuda_getMemoryMetadata": lambda: histories[0].label,
    }


def _without_effect() -> dict[str, Any]:
    """Return C functions that do not touch a card's memory."""
    return {
        "_cuda_ipc_collect": lambda: None,
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
    }


def c_functions(machine: Machine) -> dict[str, Any]:
    """Return the torch._C functions that torch.cuda calls."""
    return {
        **_devices(machine),
        **machine.serialized({**_statistics(machine), **_resets(machine), **_history(machine)}),
        **stream_functions(machine),
        **_without_effect(),
    }


def cuda_patches(machine: Machine, pinned: Pinned) -> list[Patch]:
    """Return all patches of torch.cuda."""
    cuda = torch.cuda
    functions = {**c_functions(machine), **setting_functions(machine, pinned)}
    properties = tuple(DeviceProperties(gpu) for gpu in machine.gpus)
    runtime = Cudart(machine, pinned)

    def properties_of(device: Any = None) -> DeviceProperties:
        if machine.bad_fork:
            machine.initialize()
        index = cuda._utils._get_device_index(device, optional=True)
        if not 0 <= index < len(properties):
            raise AssertionError("Invalid device id")
        return properties[index]

    def set_device(device: Any) -> None:
        index = cuda._utils._get_device_index(device)
        if index >= 0:
            machine.select(index)

    def exchange_device(device: int) -> int:
        return machine.select(device) if device >= 0 else -1

    def maybe_exchange_device(device: int) -> int:
        return machine.select(device, touch=False) if device >= 0 else -1

    def modern(*, or_else: bool = False) -> bool:
        return or_else or machine.current.card.arch.bfloat16

    answers: dict[str, Any] = {
        "_lazy_init": machine.initialize,
        "init": machine.initialize,
        "is_initialized": lambda: machine.initialized,
        "_initialized": False,
        "_is_in_bad_fork": lambda: machine.bad_fork,
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "device_count": lambda: len(machine.gpus),
        "_device_count_nvml": lambda: len(machine.gpus),
        "current_device": lambda: machine.current.index,
        "set_device": set_device,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": maybe_exchange_device,
        "get_device_properties": properties_of,
        "_get_device_properties": properties_of,
        "is_bf16_supported": lambda including_emulation=True: modern(or_else=including_emulation),
        "is_tf32_supported": modern,
        "cudart": lambda: runtime,
        "_cudart": runtime,
        "synchronize": lambda device=None: _synchronize(machine.gpu(device)),
        "default_generators": card_generators(len(machine.gpus)),
        "_lazy_call": lambda callable, **_: callable(),  # noqa: A006 - torch's name
        "device_memory_used": lambda device=None: machine.gpu(device).nvml_used,
        "_get_nvml_device_index": lambda device=None: machine.gpu(device).index,
    }
    memory = {name: functions[name] for name in functions if hasattr(cuda.memory, name)}
    return [
        *patches_of(torch._C, functions),
        *plan_patches(),
        *patches_of(torch._C, {"_has_cuda": True, "_has_cudnn": True}, only_existing=True),
        *patches_of(cuda, answers),
        *stream_patches(machine, functions),
        *patches_of(cuda.memory, {**memory, "_lazy_init": machine.initialize}),
        *patches_of(cuda.random, {"_lazy_call": answers["_lazy_call"]}),
        # Before torch 2.7 a pool was entered through another object.
        *patches_of(cuda.memory, {"MemPoolContext": lambda pool: pool}, only_existing=True),
        *_annotations(machine),
        *patches_of(cuda.memory, {"is_initialized": lambda: machine.initialized}),
    ]


def _annotations(machine: Machine) -> list[Patch]:
    """Return patches that note record_function scopes in the history.

    As torch does, beside its entries.
    """
    scope = torch.autograd.profiler.record_function
    original_enter, original_exit = scope.__enter__, scope.__exit__

    def enter(self: Any) -> Any:
        machine.current.history.annotate(self.name, "START")
        return original_enter(self)

    def leave(self: Any, *exc: Any) -> Any:
        machine.current.history.annotate(self.name, "END")
        return original_exit(self, *exc)

    return patches_of(scope, {"__enter__": enter, "__exit__": leave})
