"""Types of tensors as they were before devices: torch.cuda.FloatTensor and what is made of it.

torch.set_default_tensor_type, Tensor.type(), Tensor.type_as() and Tensor.new() ask C++ for them,
which has none for a card that it does not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, wanted
from nbmem.virtual.tensors.sparse import is_sparse

NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor",
    torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor",
}
_DTYPES = {name: dtype for dtype, name in NAMES.items()}
_Base: Any = _C.TensorBase


class CardType(type):
    """A class of tensors: what it makes is an ordinary tensor on the current card."""

    dtype: torch.dtype
    is_cuda, is_sparse, layout = True, False, torch.strided

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Sizes, or the values themselves; without either, no elements."""
        device = "cuda" if device is None else device
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(sizes, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: object) -> bool:
        return is_virtual(instance) and getattr(instance, "dtype", None) is cls.dtype


def _sparse_types() -> dict[str, SparseCardType]:
    return {
        name: SparseCardType(name, (), {"__module__": "torch.cuda.sparse", "dtype": dtype})
        for name, dtype in _DTYPES.items()
    }


def _card_types() -> dict[str, CardType]:
    return {
        name: CardType(name, (), {"__module__": "torch.cuda", "dtype": dtype})
        for name, dtype in _DTYPES.items()
    }


class SparseCardType(type):
    """The same of sparse tensors: torch.cuda.sparse.FloatTensor(indices, values, size)."""

    dtype: torch.dtype
    is_cuda, is_sparse, layout = True, True, torch.sparse_coo

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Indices and values, with or without a size; or a size alone."""
        return sparse_coo(args, dtype=cls.dtype, device="cuda" if device is None else device)

    def __instancecheck__(cls, instance: object) -> bool:
        return is_virtual(instance) and instance.is_sparse and instance.dtype is cls.dtype  # type: ignore[attr-defined]


def sparse_coo(args: tuple[Any, ...], **options: Any) -> torch.Tensor:
    """What the old constructors take: indices and values, or sizes."""
    if args and isinstance(args[0], torch.Tensor):
        return torch.sparse_coo_tensor(*args, **options)
    size = args[0] if args and not isinstance(args[0], int) else args
    return torch.sparse_coo_tensor(tuple(size) or (0,), **options)


def legacy_patches() -> list[Patch]:
    """The classes in torch.cuda, and the functions that take or name them."""
    types = _card_types()
    true_default = torch.set_default_tensor_type
    true_type, true_as, true_new = _Base.type, _Base.type_as, _Base.new

    def meaning(kind: Any) -> tuple[str, torch.dtype] | None:
        """The device and dtype of a class of tensors or of its name; None if it is neither."""
        if isinstance(kind, CardType):
            return "cuda", kind.dtype
        name = kind if isinstance(kind, str) else ""
        if isinstance(kind, type(torch.FloatTensor)):
            name = f"{kind.__module__}.{kind.__name__}"
        where, _, last = name.rpartition(".")
        if last not in _DTYPES or where not in ("torch", "torch.cuda"):
            return None
        return "cpu" if where == "torch" else "cuda", _DTYPES[last]

    def set_default_tensor_type(kind: Any) -> None:
        found = meaning(kind)
        if found is None:
            true_default(kind)
            return
        device, dtype = found
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device == "cpu" else device)

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            if not is_virtual(self):
                return true_type(self, *args, **kwargs)
            where = "torch.cuda.sparse" if is_sparse(self) else "torch.cuda"
            return f"{where}.{NAMES.get(self.dtype, str(self.dtype))}"
        found = meaning(dtype)
        if found is not None and (is_virtual(self) or found[0] == "cuda"):
            stays = found[0] == "cuda" and is_virtual(self)
            return self.to(self.device if stays else found[0], found[1])
        if is_virtual(self) and isinstance(dtype, torch.dtype):
            return self.to(dtype)
        return true_type(self, dtype, *args, **kwargs)

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if is_virtual(self) or is_virtual(other):
            return self.to(other.device, other.dtype)
        return true_as(self, other)

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not is_virtual(self):
            return true_new(self, *args, **kwargs)
        device = kwargs.get("device") or self.device
        if is_sparse(self):
            return sparse_coo(args, dtype=self.dtype, device=device)
        return types[NAMES[self.dtype]](*args, device=device)

    return [
        *wanted(torch.cuda, dict(types)),
        *wanted(torch.cuda.sparse, _sparse_types()),
        Patch(torch, "set_default_tensor_type", set_default_tensor_type),
        *wanted(torch.Tensor, {"type": type_, "type_as": type_as, "new": new}),
    ]
