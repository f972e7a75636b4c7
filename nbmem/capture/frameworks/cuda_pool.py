"""CUDA's default memory pool, read where cuda-python is imported.

cudaMallocAsync allocates from this pool. It belongs to no framework: its users here are the user's
program, or a library that does not report its memory. If CuPy's asynchronous pool or torch's
cudaMallocAsync backend allocates from it, its bytes are counted there, and not again.

https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY__POOLS.html
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks import cupy
from nbmem.capture.frameworks.framework import Framework, FrameworkReading
from nbmem.capture.torch_cuda import allocator_backend, initialized_torch

_RUNTIME = "cuda.bindings.runtime"


def read(device: int) -> FrameworkReading | None:
    """Read what the pool reserves and uses on a GPU, or return None.

    None before CUDA is initialized, if torch does not use its native allocator, if CuPy counts the
    pool, and if there is no pool.
    """
    if initialized_torch() is None or allocator_backend() != "native":
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
    return FrameworkReading(held=int(held[1]), used=int(used[1]))


OWNER = Framework(name="cuda_pool", modules=(_RUNTIME,), read=read)
