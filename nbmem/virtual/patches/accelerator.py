"""torch.accelerator and cuDNN's facts while a virtual card is active."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import _C

from nbmem.virtual.patches.patcher import Patch, wanted

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

CUDNN = 91900
"""cuDNN 9.19.0, which the wheels of torch 2.11 bring."""
CUDA_VERSION = "13.0"
"""The toolkit of the recordings' torch (2.11.0+cu130)."""


_true_groups: Any = _C._group_tensors_by_device_and_dtype
_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


def accelerator_patches(machine: Machine) -> list[Patch]:
    """What is asked of torch.accelerator and of the backends."""
    patches = wanted(
        torch.backends.cudnn,
        {"version": lambda: CUDNN, "is_available": lambda: True, "is_acceptable": _acceptable},
        only_existing=True,
    )
    # torch 2.9 has something else under the module's name in the package.
    cudnn_rnn = importlib.import_module("torch.backends.cudnn.rnn")
    patches.append(Patch(cudnn_rnn, "get_cudnn_mode", _MODES.__getitem__))
    patches += wanted(torch, {"_use_cudnn_rnn_flatten_weight": lambda: True}, only_existing=True)
    if torch.version.cuda is None:
        patches.append(Patch(torch.version, "cuda", CUDA_VERSION))
    patches.append(Patch(_C, "_group_tensors_by_device_and_dtype", _grouped))
    mine: dict[str, Any] = {"_get_accelerator": lambda _check=False: torch.device("cuda")}
    patches += wanted(_C, mine, only_existing=True)
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
        patches += wanted(accelerator, names, only_existing=True)
        switches: dict[str, Any] = {
            "_accelerator_exchangeDevice": machine.select,
            "_accelerator_maybeExchangeDevice": lambda device: machine.select(device, touch=False),
        }
        patches += wanted(torch._C, switches, only_existing=True)
    return patches


def _acceptable(tensor: torch.Tensor) -> bool:
    """Python asks so before it flattens weights; bfloat16 is not among its types."""
    backend = torch.backends.cudnn
    return backend.enabled and tensor.is_cuda and tensor.dtype in backend.CUDNN_TENSOR_DTYPES


def _grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's own
    """Groups by the device that Python sees: foreach is for CUDA, not for what C++ sees."""
    groups = _true_groups(lists, with_indices)
    return {(found[0][0][0].device, key[1]): found for key, found in groups.items()}
