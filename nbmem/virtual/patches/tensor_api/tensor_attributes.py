"""Attributes of virtual tensors, as Python sees them.

In Python a virtual tensor is a CUDA tensor with an address. A subclass that wraps one reports a
device of its own. C++ gets the virtual tensor's device for it, or the engine would search for a
driver.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import _C
from torch._subclasses.functional_tensor import FunctionalTensor

from nbmem.virtual.devices import CUDA, LAZY, cpp_device, is_virtual
from nbmem.virtual.frames import is_recording
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.transfers import MOVES, card_device, is_card, lazy_patches
from nbmem.virtual.tensors.quantized import is_quantized
from nbmem.virtual.tensors.sparse import is_sparse
from nbmem.virtual.tensors.storages import original_wrapper

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode

_Base: Any = _C.TensorBase
_LAZY_TYPE = "lazy"


def tensor_patches(mode: CardMode) -> list[Patch]:
    """Return patches of torch.Tensor's attributes and methods."""

    def device(self: torch.Tensor) -> torch.device:
        real = cpp_device(self)
        return CUDA[real.index] if real.type == _LAZY_TYPE else real

    def is_cuda(self: torch.Tensor) -> bool:
        return bool(cpp_device(self).type in (_LAZY_TYPE, "cuda"))

    def get_device(self: torch.Tensor) -> int:
        real = cpp_device(self)
        return int(real.index) if real.type == _LAZY_TYPE else _Base.get_device(self)

    def data_ptr(self: torch.Tensor) -> int:
        if not is_virtual(self):
            if not is_recording(sys._getframe(1)):
                mode.host.write_tensor(self)  # other code reads through the address
            return _Base.data_ptr(self)
        block = mode.storages.of(self)
        if block is None or not block.addr or not self.numel():
            return 0
        return block.addr + self.storage_offset() * self.element_size()

    def tolist(self: torch.Tensor) -> Any:
        if is_virtual(self):
            self = self.detach().cpu()
        mode.host.write_tensor(self)
        return _Base.tolist(self)

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if is_virtual(self):
            if is_sparse(self):
                raise TypeError(
                    "can't convert Sparse layout tensor to numpy. Use Tensor.to_dense() first."
                )
            if not force:
                raise TypeError(
                    f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                    "copy the tensor to host memory first."
                )
            self = self.detach().cpu()
        mode.host.write_tensor(self)
        return _Base.numpy(self, force=force)

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if not is_virtual(self):
            raise NotImplementedError(
                "Could not run 'aten::record_stream' with arguments from the 'CPU' backend."
            )
        block = mode.storages.of(self)
        if block is not None and block.addr:
            block.gpu.record_stream(block.addr, int(stream.cuda_stream))

    def pin_memory(self: torch.Tensor, *_args: Any) -> torch.Tensor:
        if is_virtual(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self if is_pinned(self) else mode.pinned.pin(self.detach().clone())

    def is_pinned(self: torch.Tensor, *_args: Any) -> bool:
        return not is_virtual(self) and mode.pinned.holds(self)

    def array_interface(self: torch.Tensor) -> dict[str, Any]:
        if not is_virtual(self):
            raise AttributeError("Can't get __cuda_array_interface__ on a CPU tensor.")
        if self.requires_grad:
            raise RuntimeError(
                "Can't get __cuda_array_interface__ on Variable that requires grad. "
                "If gradients aren't required, use var.detach() to get Variable that doesn't "
                "require grad."
            )
        item = self.element_size()
        kind = "c" if self.is_complex() else "f" if self.is_floating_point() else "i"
        kind = {torch.bool: "b", torch.uint8: "u"}.get(self.dtype, kind)
        order = "|" if item == 1 else "<"
        strides = None if self.is_contiguous() else tuple(step * item for step in self.stride())
        return {
            "typestr": f"{order}{kind}{item}",
            "shape": tuple(self.shape),
            "strides": strides,
            "data": (self.data_ptr(), False),
            "version": 2,
        }

    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        """Make a subclass tensor that the engine takes for a virtual one.

        Where AOTAutograd traces, autocast identifies such a tensor by the keys that it gets here.
        """
        if args and args[0] is FunctionalTensor and type(args[-1]) is _C.DispatchKeySet:
            args = (*args[:-1], args[-1].add(_C.DispatchKey.AutocastCUDA))
        kwargs = {name: _for_cpp(value) for name, value in kwargs.items()}
        return original_wrapper(*map(_for_cpp, args), **kwargs)

    names = {
        "_make_wrapper_subclass": staticmethod(wrapper),
        "device": property(device),
        "is_cuda": property(is_cuda),
        "get_device": get_device,
        "data_ptr": data_ptr,
        "record_stream": record_stream,
        "tolist": tolist,
        "numpy": numpy,
        "pin_memory": pin_memory,
        "is_pinned": is_pinned,
        "__cuda_array_interface__": property(array_interface),
    }
    return [*patches_of(torch.Tensor, names), *patches_of(torch.Tensor, MOVES), *lazy_patches()]


def _for_cpp(value: Any) -> Any:
    return LAZY[card_device(value).index] if is_card(value) else value


def printing_patches(mode: CardMode) -> list[Patch]:
    """Return patches that print a virtual tensor from a copy's values.

    The scratch memory that a real card uses for printing is not modelled.
    """
    from torch import _tensor_str

    original_body, original_whole = _tensor_str._tensor_str, _tensor_str._str_intern

    def body(self: torch.Tensor, indent: int) -> str:
        # Torch prints with every mode off, so the copy cannot be made by .cpu().
        if is_virtual(self):
            self = mode.values.on_cpu(self)
        mode.host.write_tensor(self)
        return original_body(self, indent)

    def whole(inp: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if not (is_virtual(inp) and (is_sparse(inp) or is_quantized(inp))):
            return original_whole(inp, tensor_contents=tensor_contents)
        with mode:
            copy = inp.detach().cpu()
        text = original_whole(copy, tensor_contents=tensor_contents)
        contents, size, rest = text.rpartition("size=(")
        return f"{contents}device='{inp.device}', {size}{rest}"

    return [
        Patch(_tensor_str, "_tensor_str", body),
        Patch(_tensor_str, "_str_intern", whole),
    ]
