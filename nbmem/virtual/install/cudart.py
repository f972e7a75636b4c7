"""torch.cuda answered by the virtual card: the C functions it stands on, and a few Python ones.

On a CPU-only build the C functions do not exist; they do while a card is active and go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.graphs import VirtualGraph, VirtualMemPool, pool_handle
from nbmem.virtual.install.patches import Patch, wanted
from nbmem.virtual.snapshot import snapshot_of
from nbmem.virtual.streams import VirtualEvent, VirtualStream

if TYPE_CHECKING:
    from nbmem.virtual.device import VirtualGPU


class DeviceProperties:
    """What `get_device_properties` returns for the virtual card."""

    def __init__(self, gpu: VirtualGPU) -> None:
        card = gpu.card
        self.name = card.name
        self.major, self.minor = card.capability
        self.total_memory = card.total_bytes
        self.multi_processor_count = card.processors
        self.max_threads_per_multi_processor = card.threads_per_processor
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 << 10
        self.shared_memory_per_block_optin = card.shared_bytes
        self.shared_memory_per_multiprocessor = card.shared_bytes + 1024
        self.L2_cache_size = card.l2_bytes
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.gcnArchName = ""
        self.uuid = gpu.uuid

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


class Cudart:
    """The part of the CUDA runtime that programs reach through torch.cuda.cudart()."""

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self.cudaError = type("cudaError", (), {"success": 0})

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:  # noqa: N802 - CUDA's name
        """Free and total bytes."""
        del device
        self._gpu.initialized = True
        return max(0, self._gpu.free_bytes), self._gpu.card.total_bytes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuda"):
            return lambda *_args, **_kwargs: 0
        raise AttributeError(name)


def _raw_alloc(gpu: VirtualGPU) -> dict[str, Any]:
    return {
        "_cuda_cudaCachingAllocator_raw_alloc": lambda size, stream: gpu.take(size, int(stream)),
        "_cuda_cudaCachingAllocator_raw_delete": gpu.give,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": lambda value: None,
        "_cuda_getAllocatorBackend": lambda: "native",
    }


def c_functions(gpu: VirtualGPU) -> dict[str, Any]:
    """The functions of torch._C that torch.cuda calls."""
    allocator, history = gpu.allocator, gpu.history

    def record_history(  # noqa: PLR0913 - torch's signature
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = 1 << 62,
        clear_history: bool = False,  # noqa: FBT001, FBT002
        compile_context: bool = False,  # noqa: FBT001, FBT002
        global_record_annotations: bool = False,  # noqa: FBT001, FBT002
        skip_actions: list[str] | None = None,
    ) -> None:
        del stacks, compile_context, global_record_annotations
        history.configure(
            enabled, context, max_entries, clear=clear_history, skip=list(skip_actions or [])
        )

    def memory_snapshot(wanted_pool: Any = None) -> dict[str, Any]:
        if wanted_pool is None:
            return snapshot_of(gpu)
        *pool, traces = (*wanted_pool, True)[:3] if len(wanted_pool) < 3 else wanted_pool
        return snapshot_of(gpu, traces=bool(traces), pool=tuple(pool))

    def current_stream(device: int = 0) -> tuple[int, int, int]:
        del device
        return gpu.stream.handle, 0, 1

    def set_stream(stream_id: int, device_index: int = 0, device_type: int = 1) -> None:
        del device_index, device_type
        gpu.stream.handle = stream_id

    def set_label(text: str) -> None:
        history.label = text

    return {
        "_cuda_init": gpu.initialize,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": lambda device: None,
        "_cuda_exchangeDevice": lambda device: 0,
        "_cuda_maybeExchangeDevice": lambda device: 0,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_synchronize": gpu.synchronize,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_getArchFlags": lambda: f"sm_{gpu.card.capability[0]}{gpu.card.capability[1]}",
        "_cuda_canDeviceAccessPeer": lambda device, peer: False,
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_cuda_set_cudnn_benchmark_limit": lambda limit: None,
        "_cuda_clearCublasWorkspaces": gpu.workspaces.clear,
        "_cuda_memoryStats": lambda device=0: allocator.memory_stats(),
        "_cuda_resetPeakMemoryStats": lambda device=0: allocator.reset_peak_stats(),
        "_cuda_resetAccumulatedMemoryStats": lambda device=0: allocator.reset_accumulated_stats(),
        "_cuda_emptyCache": gpu.empty_cache,
        "_cuda_setMemoryFraction": lambda fraction, device=0: allocator.set_memory_fraction(
            fraction
        ),
        "_cuda_getMemoryFraction": lambda device=0: gpu.fraction,
        "_cuda_memorySnapshot": memory_snapshot,
        "_cuda_record_memory_history": record_history,
        "_cuda_isHistoryEnabled": lambda: history.enabled is not None,
        "_cuda_allocationTraceback": lambda addr: history.frames_at(addr) or None,
        "_cuda_attach_out_of_memory_observer": gpu.oom_observers.append,
        "_cuda_setMemoryMetadata": set_label,
        "_cuda_getMemoryMetadata": lambda: history.label,
        "_cuda_cudaCachingAllocator_set_allocator_settings": allocator.set_settings,
        "_accelerator_setAllocatorSettings": allocator.set_settings,
        "_cuda_hostMemoryStats": dict,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getCurrentRawStream": lambda device=0: gpu.stream.handle,
        "_cuda_getDefaultStream": lambda device=0: (0, 0, 1),
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: gpu.capturing,
        "_graph_pool_handle": pool_handle,
        "_cuda_beginAllocateToPool": lambda device, pool: gpu.pools.begin(pool),
        "_cuda_beginAllocateCurrentThreadToPool": lambda device, pool: gpu.pools.begin(pool),
        "_cuda_endAllocateToPool": lambda device, pool: gpu.pools.end(pool),
        "_cuda_releasePool": lambda device, pool: gpu.pools.release(pool),
        "_host_emptyCache": lambda: None,
        **_raw_alloc(gpu),
    }


def cuda_patches(gpu: VirtualGPU) -> list[Patch]:
    """Everything of torch.cuda."""
    cuda = torch.cuda
    functions = c_functions(gpu)
    classes = {
        base.__name__: type(base.__name__, (base,), {"gpu": gpu})
        for base in (VirtualStream, VirtualEvent, VirtualGraph, VirtualMemPool)
    }
    properties = DeviceProperties(gpu)
    runtime = Cudart(gpu)
    stream, event = classes["VirtualStream"], classes["VirtualEvent"]
    graph, pool = classes["VirtualGraph"], classes["VirtualMemPool"]

    def set_stream(new: Any) -> None:
        if new is not None:
            gpu.stream.handle = new.cuda_stream

    answers: dict[str, Any] = {
        "_lazy_init": gpu.initialize,
        "init": gpu.initialize,
        "is_initialized": lambda: gpu.initialized,
        "_initialized": False,
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_device_properties": lambda device=None: properties,
        "_get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: bool(
            gpu.card.capability >= (8, 0) or including_emulation
        ),
        "is_tf32_supported": lambda: gpu.card.capability >= (8, 0),
        "cudart": lambda: runtime,
        "_cudart": runtime,
        "synchronize": lambda device=None: gpu.synchronize(),
        "default_generators": (torch.Generator(),),
        "Stream": stream,
        "Event": event,
        "CUDAGraph": graph,
        "MemPool": pool,
        "current_stream": lambda device=None: stream(handle=gpu.stream.handle),
        "default_stream": lambda device=None: stream(handle=0),
        "set_stream": set_stream,
        "_lazy_call": lambda callable, **_: callable(),  # noqa: A006 - torch's name
        "device_memory_used": lambda device=None: gpu.nvml_used,
        "_get_nvml_device_index": lambda device=None: 0,
    }
    memory = {name: functions[name] for name in functions if hasattr(cuda.memory, name)}
    return [
        *wanted(torch._C, functions),
        *wanted(torch._C, {"_has_cuda": True, "_has_cudnn": True}, only_existing=True),
        *wanted(cuda, answers),
        *wanted(cuda.streams, {"Stream": stream, "Event": event}),
        *wanted(cuda.graphs, {"CUDAGraph": graph}),
        *wanted(
            cuda.graphs,
            {n: functions[n] for n in ("_cuda_isCurrentStreamCapturing", "_graph_pool_handle")},
        ),
        *wanted(cuda.memory, {**memory, "MemPool": pool, "_lazy_init": gpu.initialize}),
        *_annotations(gpu),
        *wanted(cuda.memory, {"is_initialized": lambda: gpu.initialized}),
    ]


def _annotations(gpu: VirtualGPU) -> list[Patch]:
    """Scopes of record_function are noted beside the history, as torch notes them."""
    scope = torch.autograd.profiler.record_function
    true_enter, true_exit = scope.__enter__, scope.__exit__

    def enter(self: Any) -> Any:
        gpu.history.annotate(self.name, "START")
        return true_enter(self)

    def leave(self: Any, *exc: Any) -> Any:
        gpu.history.annotate(self.name, "END")
        return true_exit(self, *exc)

    return wanted(scope, {"__enter__": enter, "__exit__": leave})
