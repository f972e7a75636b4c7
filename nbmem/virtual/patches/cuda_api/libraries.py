"""Links between torch and other libraries: DLPack, NVTX and NCCL.

Tensors of a virtual card go through torch's own ends of DLPack. Another library gets an error that
explains what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import dlpack

from nbmem.core.errors import UsageError
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode

NCCL = (2 << 32) | (28 << 16) | 9
"""NCCL 2.28.9, which the wheels of torch 2.11 bring, as torch._C packs it."""
_DLPACK_CUDA = 2
_NO_DATA = "A tensor on a virtual GPU has no data for another library to read."


class Capsule:
    """A capsule of to_dlpack() for a virtual tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Nvtx:
    """NVTX's functions, which do nothing: no profiler reads the ranges."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: 0


def library_patches(mode: CardMode) -> list[Patch]:
    """Return patches of torch.utils.dlpack, torch.cuda.nvtx and torch._C."""
    original_to, original_from = dlpack.to_dlpack, dlpack.from_dlpack
    original_own, cpp_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__

    def to_dlpack(tensor: torch.Tensor) -> Any:
        if is_virtual(tensor):
            return Capsule(tensor.detach())
        mode.host.write_tensor(tensor)
        return original_to(tensor)

    def from_dlpack(external: Any, **options: Any) -> torch.Tensor:
        if isinstance(external, Capsule):
            return external.tensor
        if is_virtual(external):
            if external.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            if external.is_conj():
                raise BufferError("Can't export tensors with the conjugate bit set")
            device = options.get("device")
            moved = external if device is None else external.to(device)
            return moved.clone() if options.get("copy") else moved.detach()
        return original_from(external, **options)

    def own(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        if is_virtual(self):
            raise UsageError(f"{_NO_DATA} Give it a copy: tensor.cpu().")
        mode.host.write_tensor(self)
        return original_own(self, *args, **options)

    def own_device(self: torch.Tensor) -> Any:
        return (_DLPACK_CUDA, self.get_device()) if is_virtual(self) else cpp_device(self)

    ends = {"to_dlpack": to_dlpack, "from_dlpack": from_dlpack}
    return [
        *patches_of(dlpack, ends),
        *patches_of(torch, ends, only_existing=True),
        *patches_of(torch.Tensor, {"__dlpack__": own, "__dlpack_device__": own_device}),
        *patches_of(torch.cuda.nvtx, {"_nvtx": _Nvtx()}, only_existing=True),
        *patches_of(torch._C, {"_nccl_version": lambda: NCCL, "_nccl_version_suffix": lambda: b""}),
    ]
