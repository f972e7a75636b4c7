"""The devices of the cards: as Python sees them, and as C++ does.

In C++ a virtual tensor is on the device `lazy:0`, one of the second card on `lazy:1`. In Python its
device is `cuda:0` (virtual/patches/tensor_api/tensor_attributes.py). Why: tensors/storages.py.
"""

from __future__ import annotations

import torch
from torch import _C

from nbmem.virtual.card_names import MOST

CUDA = tuple(torch.device("cuda", index) for index in range(MOST))
"""The devices of the cards by ordinal, in Python."""
LAZY = tuple(torch.device("lazy", index) for index in range(MOST))
"""The devices of the cards by ordinal, in C++."""
META = torch.device("meta")
CPU = torch.device("cpu")

cpp_device = _C.TensorBase.device.__get__
"""Return a tensor's device in C++; `tensor.device` is patched in Python."""


def is_virtual(value: object) -> bool:
    """Return whether a value is a tensor on a virtual card."""
    if not isinstance(value, torch.Tensor):
        return False
    if not _C._len_torch_function_stack():
        return cpp_device(value).type == "lazy"
    # With a default device set, the descriptor would give the patched device, too.
    with _C.DisableTorchFunction():
        return cpp_device(value).type == "lazy"
