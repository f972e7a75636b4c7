"""torch.cuda.jiterator: elementwise kernels from strings of C++.

The strings are not compiled.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of


def jiterator_patches() -> list[Patch]:
    """Return a patch of the C++ function that launches its kernels."""

    def launch(  # noqa: PLR0913 - torch's
        code: str,
        kernel: str,
        by_reference: bool,  # noqa: FBT001
        count: int,
        tensors: tuple[torch.Tensor, ...],
        options: Any,
    ) -> Any:
        del code, by_reference, options
        if not all(is_virtual(tensor) for tensor in tensors):
            raise RuntimeError(f"{kernel}: the jiterator takes tensors on the GPU alone.")
        size = torch.broadcast_shapes(*(tensor.size() for tensor in tensors))
        dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        model = tensors[0].detach().expand(size)
        made = tuple(torch.empty_like(model, dtype=dtype) for _ in range(count))
        return made[0] if count == 1 else made

    return patches_of(_C, {"_cuda_jiterator_compile_and_launch_kernel": launch})
