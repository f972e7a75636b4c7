"""Tensor types as torch.cuda.FloatTensor, from before devices.

torch.set_default_tensor_type, torch.Tensor(), Tensor.type(), Tensor.type_as() and Tensor.new() get
these types from C++, which has none for an unknown card.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import _C

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.value_checks import in_cpp
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.list_arguments import replace_tensors
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
    """Metaclass of tensor types, which make tensors on the current card."""

    dtype: torch.dtype
    is_cuda, is_sparse, layout = True, False, torch.strided

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Make a tensor from sizes, from values, or over a tensor or storage."""
        return made_on_card(args, cls.dtype, device)

    def __instancecheck__(cls, instance: object) -> bool:
        return is_virtual(instance) and getattr(instance, "dtype", None) is cls.dtype


def made_on_card(args: tuple[Any, ...], dtype: torch.dtype, device: Any = None) -> torch.Tensor:
    """Make a tensor on a card as torch's legacy constructors do.

    Reads the arguments as torch/csrc/utils/tensor_new.cpp, legacy_tensor_generic_ctor.

    Args:
        args: Sizes, or one tensor, storage or sequence.
        dtype: The type to make.
        device: As the program gave it.

    Raises:
        RuntimeError: The device is not a card.
        TypeError: A tensor of another type or device was given, or no sequence.
    """
    device = torch.device("cuda" if device is None else device)
    if device.type != "cuda":
        raise RuntimeError(
            "legacy constructor expects device type: cuda but device type: "
            f"{device.type} was passed"
        )
    given = args[0] if len(args) == 1 else None
    if isinstance(given, torch.Tensor):
        if given.dtype is not dtype or not is_virtual(given):
            wanted_one = _options(torch.empty((), dtype=dtype), "cuda")
            raise TypeError(f"expected {wanted_one} (got {_options(given, given.device)})")
        return torch.ops.aten.alias.default(given)
    if isinstance(given, (torch.UntypedStorage, torch.TypedStorage)):
        storage: Any = given
        return torch.empty(0, dtype=dtype, device=device).set_(storage)
    if isinstance(given, torch.Size) or all(map(_is_size, args)):
        size = given if isinstance(given, torch.Size) else args or (0,)
        return torch.empty(size, dtype=dtype, device=device)
    made = _Base.new(
        torch.empty(0, dtype=dtype, device="cpu"), *(replace_tensors(arg)[0] for arg in args)
    )
    return made.to(device)


def _is_size(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _options(tensor: torch.Tensor, device: Any) -> str:
    """Return a tensor's options as torch's messages print them."""
    return (
        f"TensorOptions(dtype={in_cpp(tensor)}, device={device}, layout=Strided, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )


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
    """Metaclass of sparse tensor types.

    A type is called as torch.cuda.sparse.FloatTensor(indices, values, size).
    """

    dtype: torch.dtype
    is_cuda, is_sparse, layout = True, True, torch.sparse_coo

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Make a tensor from indices and values, with a size, or a size alone."""
        return sparse_coo(args, dtype=cls.dtype, device="cuda" if device is None else device)

    def __instancecheck__(cls, instance: object) -> bool:
        return is_virtual(instance) and instance.is_sparse and instance.dtype is cls.dtype  # type: ignore[attr-defined]


def sparse_coo(args: tuple[Any, ...], **options: Any) -> torch.Tensor:
    """Make a COO tensor as the legacy constructors do.

    From indices and values, or from sizes.
    """
    if args and isinstance(args[0], torch.Tensor):
        return torch.sparse_coo_tensor(*args, **options)
    size = args[0] if args and not isinstance(args[0], int) else args
    return torch.sparse_coo_tensor(tuple(size) or (0,), **options)


class _Default:
    """The default device and the default tensor type.

    The device that was set comes first, then the default type.

    Attributes:
        card: The device of the default type, where that is one of a card.
        chosen: What torch.set_default_device was given.
    """

    def __init__(self) -> None:
        self.card: str | None = None
        self.chosen: Any = None
        self._original_set = torch.set_default_device
        self._original_tensor = torch.Tensor.__new__

    def set_type(self, device: str, dtype: torch.dtype) -> None:
        """Set the default type to that of a device and a dtype."""
        torch.set_default_dtype(dtype)
        self.card = None if device == "cpu" else device
        self.set_device(self.chosen)

    def set_device(self, device: Any) -> None:
        """Set the default device, which comes before the default type."""
        self.chosen = device
        self._original_set(self.card if device is None else device)

    def resolve_type(self, kind: Any) -> tuple[str, torch.dtype] | None:
        """Return the device and dtype of a tensor type or its name.

        None if it is neither.
        """
        if isinstance(kind, CardType):
            return "cuda", kind.dtype
        if kind is torch.Tensor or kind == "torch.Tensor":
            return self.card or "cpu", torch.get_default_dtype()
        name = kind if isinstance(kind, str) else ""
        if isinstance(kind, type(torch.FloatTensor)):
            name = f"{kind.__module__}.{kind.__name__}"
        where, _, last = name.rpartition(".")
        if last not in _DTYPES or where not in ("torch", "torch.cuda"):
            return None
        return "cpu" if where == "torch" else "cuda", _DTYPES[last]

    def patches(self) -> list[Patch]:
        """Return patches of torch.set_default_device and torch.Tensor(...)."""

        def set_default_device(device: Any) -> None:
            self.set_device(device)

        def tensor(cls: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            """Make a tensor of the default type, whatever the default device is."""
            if self.card is not None and not (args and isinstance(args[0], torch.Tensor)):
                made = made_on_card(args, torch.get_default_dtype(), **kwargs)
            else:
                made = self._original_tensor(
                    torch.Tensor, *(replace_tensors(arg)[0] for arg in args), **kwargs
                )
            return made if cls is torch.Tensor else made.as_subclass(cls)

        return [
            Patch(torch, "set_default_device", set_default_device),
            Patch(torch.Tensor, "__new__", staticmethod(tensor)),
        ]


def legacy_patches() -> list[Patch]:
    """Return patches of the tensor types and of their users.

    These are the classes in torch.cuda, and the functions that take or name them.
    """
    default = _Default()
    original_default = torch.set_default_tensor_type
    original_type, original_as, original_new = _Base.type, _Base.type_as, _Base.new

    def set_default_tensor_type(kind: Any) -> None:
        found = default.resolve_type(kind)
        if found is None:
            original_default(kind)
        else:
            default.set_type(*found)

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            if not is_virtual(self):
                return original_type(self, *args, **kwargs)
            where = "torch.cuda.sparse" if is_sparse(self) else "torch.cuda"
            return f"{where}.{NAMES.get(self.dtype, str(self.dtype))}"
        found = default.resolve_type(dtype)
        if found is not None and (is_virtual(self) or found[0] == "cuda"):
            stays = found[0] == "cuda" and is_virtual(self)
            return self.to(self.device if stays else found[0], found[1])
        if is_virtual(self) and isinstance(dtype, torch.dtype):
            return self.to(dtype)
        return original_type(self, dtype, *args, **kwargs)

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if is_virtual(self) or is_virtual(other):
            return self.to(other.device, other.dtype)
        return original_as(self, other)

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not is_virtual(self):
            return original_new(self, *args, **kwargs)
        device = kwargs.get("device") or self.device
        if is_sparse(self):
            return sparse_coo(args, dtype=self.dtype, device=device)
        return made_on_card(args, self.dtype, device)

    return [
        *patches_of(torch.cuda, dict(_card_types())),
        *patches_of(torch.cuda.sparse, _sparse_types()),
        Patch(torch, "set_default_tensor_type", set_default_tensor_type),
        *default.patches(),
        *patches_of(torch.Tensor, {"type": type_, "type_as": type_as, "new": new}),
    ]
