"""CUDA's default memory pool, from which cudaMallocAsync takes: where cuda-python is imported.

It is nobody's of its own: what takes from it here is a program of the user's, or a library that
does not tell. Where CuPy's asynchronous pool or torch's cudaMallocAsync backend takes from it, its
bytes are counted there, and not again.
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY__POOLS.html
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks import cupy
from nbmem.capture.frameworks.framework import Owner, OwnerReading
from nbmem.capture.torch_cuda import backend, initialized_torch

_RUNTIME = "cuda.bindings.runtime"


def read(device: int) -> OwnerReading | None:
    """What it reserves and has in use on a card; None where it is somebody's, or not there."""
    if initialized_torch() is None or backend() != "native":
        return None
    if cupy.OWNER.is_loaded and cupy.is_asynchronous():
        return None
    cuda: Any = sys.modules[_RUNTIME]
    error, pool = cuda.cudaDeviceGetDefaultMemPool(device)
    if int(error):
        return None
    kinds = cuda.cudaMemPoolAttr
    held = cuda.cudaMemPoolGetAttribute(pool, kinds.cudaMemPoolAttrReservedMemCurrent)
    used = cuda.cudaMemPoolGetAttribute(pool, kinds.cudaMemPoolAttrUsedMemCurrent)
    if int(held[0]) or int(used[0]):
        return None
    return OwnerReading(held=int(held[1]), used=int(used[1]))


OWNER = Owner(name="cuda_pool", modules=(_RUNTIME,), read=read)
