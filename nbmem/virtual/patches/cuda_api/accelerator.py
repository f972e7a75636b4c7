"""torch.accelerator and cuDNN's facts while a virtual card is active."""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.hardware.graphs import PoolId, VirtualGraph
from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

CUDNN = 91900
"""cuDNN 9.19.0, which the wheels of torch 2.11 bring."""
CUDA_VERSION = "13.0"
"""The toolkit of the recordings' torch (2.11.0+cu130)."""


_original_groups: Any = _C._group_tensors_by_device_and_dtype
_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


def accelerator_patches(machine: Machine) -> list[Patch]:
    """Return the patches of torch.accelerator and torch.backends.cudnn.

    They include torch.version.cuda on a build without CUDA, and the grouping of tensors for foreach
    operators.
    """
    patches = patches_of(
        torch.backends.cudnn,
        {"version": lambda: CUDNN, "is_available": lambda: True, "is_acceptable": _acceptable},
        only_existing=True,
    )
    # torch 2.9 has something else under the module's name in the package.
    cudnn_rnn = importlib.import_module("torch.backends.cudnn.rnn")
    patches.append(Patch(cudnn_rnn, "get_cudnn_mode", _MODES.__getitem__))
    patches += patches_of(
        torch, {"_use_cudnn_rnn_flatten_weight": lambda: True}, only_existing=True
    )
    if torch.version.cuda is None:
        patches.append(Patch(torch.version, "cuda", CUDA_VERSION))
    patches.append(Patch(_C, "_group_tensors_by_device_and_dtype", _grouped))
    mine: dict[str, Any] = {"_get_accelerator": lambda _check=False: torch.device("cuda")}
    patches += patches_of(_C, mine, only_existing=True)
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        names: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: len(machine.gpus),
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: machine.current.index,
            "current_device_idx": lambda: machine.current.index,
            "set_device_index": machine.select,
            "set_device_idx": machine.select,
            "synchronize": lambda device=None: machine.gpu(device).synchronize(),
            "current_stream": lambda device=None: torch.cuda.current_stream(device),
            "set_stream": torch.cuda.set_stream,
        }
        patches += patches_of(accelerator, names, only_existing=True)
        patches += patches_of(torch._C, _counters(machine), only_existing=True)
        patches += _graphs(machine, accelerator)
    return patches


def _counters(machine: Machine) -> dict[str, Any]:
    """Return the torch._C functions that only torch.accelerator calls.

    Those that it shares with torch.cuda are patched with torch.cuda.
    """

    def memory_info(device: int) -> tuple[int, int]:
        gpu = machine.gpu(device)
        gpu.initialize()
        return max(0, gpu.free_bytes), gpu.card.total_bytes

    def statistics(device: int) -> dict[str, Any]:
        with machine.lock:
            found = machine.gpu(device).allocator.memory_stats()
        return {name: value for name, value in found.items() if name != "num_oom_rejections"}

    return {
        "_accelerator_exchangeDevice": machine.select,
        "_accelerator_maybeExchangeDevice": lambda device: machine.select(device, touch=False),
        "_accelerator_isAllocatorInitialized": lambda: machine.initialized,
        "_accelerator_getDeviceStats": statistics,
        "_accelerator_getMemoryInfo": memory_info,
        "_accelerator_getDeviceCapability": _capability,
    }


def _capability(_device: int) -> None:
    """Raise the error of device guards without capabilities.

    CUDA's guard inherits it (c10/core/impl/DeviceGuardImplInterface.h).
    """
    raise RuntimeError("Backend doesn't support getting device capabilities.")


def _graphs(machine: Machine, accelerator: Any) -> list[Patch]:
    """Return patches of torch.accelerator.Graph, new in torch 2.12.

    The graph is CUDA's, and is its own context manager. Empty for older releases.
    """
    graphs = getattr(accelerator, "graphs", None)
    if graphs is None:
        return []

    class Graph(VirtualGraph):
        """A CUDA graph that captures on the current stream."""

        def __init__(
            self,
            keep_graph: bool = False,  # noqa: FBT001, FBT002 - torch's signature
            *,
            pool: PoolId | None = None,
            capture_error_mode: str = "default",
        ) -> None:
            super().__init__(keep_graph)
            self.graph_pool, self.capture_error_mode = pool, capture_error_mode

        def capture_begin(self, pool: Any = None, *_args: Any, **_rest: Any) -> None:
            super().capture_begin(pool=pool or self.graph_pool)

        def __enter__(self) -> None:
            accelerator.synchronize()
            if torch.compiler.config.force_cudagraph_gc:
                gc.collect()
            accelerator.empty_cache()
            self.capture_begin()

        def __exit__(self, *_exc_info: object) -> None:
            self.capture_end()

    Graph.machine = machine
    return [Patch(accelerator, "Graph", Graph), Patch(graphs, "Graph", Graph)]


def _acceptable(tensor: torch.Tensor) -> bool:
    """Return whether cuDNN accepts a tensor, as is_acceptable() does.

    torch calls it before it flattens the weights of recurrent layers. bfloat16 is not among cuDNN's
    types.
    """
    backend = torch.backends.cudnn
    return backend.enabled and tensor.is_cuda and tensor.dtype in backend.CUDNN_TENSOR_DTYPES


def _grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's own
    """Group tensors by dtype and by the device that Python sees.

    foreach operators take their fast path on CUDA; in C++ the device is another one.
    """
    groups = _original_groups(lists, with_indices)
    return {(found[0][0][0].device, key[1]): found for key, found in groups.items()}
