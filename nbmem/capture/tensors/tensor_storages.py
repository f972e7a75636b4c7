"""Read the storage of a tensor, bypassing what a subclass overrides.

Neither its `__torch_function__` nor its dispatch is called.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from nbmem.capture.interpreter.object_members import (
    attributes_of,
    entries_of,
    is_a,
    mro_of,
    name_of,
    namespace_of,
)
from nbmem.capture.tensors.active_registry import active_registry, existing_since
from nbmem.capture.tensors.tree_storages import kind_of
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.tensor_names import VIEW


class Storage(NamedTuple):
    """A storage on a card, as one tensor shows it.

    Attributes:
        device: CUDA ordinal.
        addr: Address.
        size: Bytes.
        span: Bytes of the tensor that shows it; the widest tensor gives the form.
        form: Shape and dtype: `(64, 3, 7, 7) float32`, with `, a view` if it shows only a part.
    """

    device: int
    addr: int
    size: int
    span: int
    form: str


def locate_storage(torch: Any, tensor: Any) -> tuple[int, int, int] | None:
    """Return the device, address and bytes of a tensor's storage, or None.

    None if it is on no card or has no storage of its own.

    Args:
        torch: The user's torch; functions of subclasses must be disabled around the call.
        tensor: A tensor of any class, or an untyped storage.

    Returns:
        CUDA ordinal, address, bytes. If a storage registry is active, its devices replace the
        cards. They have the numbers -1, -2 and so on, so that they are not mistaken for a card.
    """
    storages, own = torch.UntypedStorage, type(tensor) is torch.UntypedStorage
    if not own and type(tensor) is not torch.nn.Parameter:
        tensor = unwrapped(torch, local_of(tensor))
    try:
        storage = tensor if own else torch.Tensor.untyped_storage(tensor)
        device = storages.device.__get__(storage)
        registry = active_registry()
        if kind_of(device) != ("cuda" if registry is None else registry.kind):
            return None
        addr, size = storages.data_ptr(storage), storages.nbytes(storage)
        place = device.index or 0, addr, size
        if registry is not None and addr and size:
            made_by = None if own else torch.Tensor.grad_fn.__get__(tensor)
            if made_by is None:
                return registry.register(place[0], storage, addr, size, None if own else tensor)
            with existing_since(made_by):
                place = registry.register(place[0], storage, addr, size, tensor)
    except Exception as err:  # noqa: BLE001 - sparse, a wrapper subclass, freed: no storage
        reraise_if_from_signal(err)
        return None
    return place if addr and size else None


def data_of(torch: Any, tensor: Any) -> int | None:
    """Return the address of a plain tensor's data, or None.

    None for a subclass, and if it cannot be read.

    Faster than `locate_storage`, and nothing is registered.
    """
    if type(tensor) is not torch.Tensor:
        return None
    try:
        return int(torch.Tensor.data_ptr(tensor)) or None
    except Exception as err:  # noqa: BLE001 - sparse, or a wrapper of torch.func's
        reraise_if_from_signal(err)
        return None


def parts_of_sparse(torch: Any, tensor: Any) -> list[tuple[str, Any]]:
    """Return the dense parts of a sparse tensor, by accessor: `values()`.

    Empty for any other tensor.

    Args:
        torch: The user's torch; functions of subclasses must be disabled around the call.
        tensor: A tensor of any layout.
    """
    kind: Any = torch.Tensor
    try:
        layout = kind.layout.__get__(tensor)
        if layout is torch.strided:
            return []
        if layout is torch.sparse_coo:  # indices() itself wants a coalesced tensor
            return [
                ("indices()", kind._indices(tensor)),  # noqa: SLF001
                ("values()", kind._values(tensor)),  # noqa: SLF001
            ]
        if layout in {torch.sparse_csr, torch.sparse_bsr}:
            names = ("crow_indices", "col_indices", "values")
        elif layout in {torch.sparse_csc, torch.sparse_bsc}:
            names = ("ccol_indices", "row_indices", "values")
        else:
            return []
        return [(f"{name}()", getattr(kind, name)(tensor)) for name in names]
    except Exception as err:  # noqa: BLE001 - a wrapper without attributes
        reraise_if_from_signal(err)
        return []


def parts_of(torch: Any, tensor: Any, *, values: bool) -> list[tuple[str, Any]]:
    """Return the parts of a sparse tensor or a wrapper, by name.

    Args:
        torch: The user's torch; functions of subclasses must be disabled around the call.
        tensor: A tensor of any class.
        values: For a sparse tensor return only the values.
    """
    parts = parts_of_sparse(torch, tensor)
    return (parts[-1:] if values else parts) or parts_of_wrapper(torch, tensor)


def parts_of_wrapper(torch: Any, tensor: Any) -> list[tuple[str, Any]]:
    """Return the tensor attributes of a subclass without a storage.

    Empty for any other tensor.

    Examples are quantized weights and an 8-bit optimizer's state: `weight.qdata`, `weight.scale`.
    No code of the class itself runs.
    """
    tensor = local_of(tensor)
    if not dispatches(torch, type(tensor)):
        return []
    own = entries_of(attributes_of(tensor) or {})
    return [(name, part) for name, part in own if is_a(type(part), torch.Tensor)]


def unwrapped(torch: Any, tensor: Any) -> Any:
    """Return the tensor inside torch.func wrappers, or any other one itself.

    `grad` and `vmap` wrap their inputs once for each level, and a wrapper has no storage:
    https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/functorch/init.cpp
    """
    functorch: Any = getattr(torch._C, "_functorch", None)  # noqa: SLF001 - since torch 2.0
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    while is_wrapped is not None and is_wrapped(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def local_of(tensor: Any) -> Any:
    """Return a DTensor's tensor on this rank, or any other tensor itself.

    It is read from its slot.
    """
    kind = type(tensor)
    known = sys.modules.get("torch.distributed.tensor._api")
    if known is None or kind is not vars(known).get("DTensor"):
        return tensor
    slot = namespace_of(kind).get("_local_tensor")
    return tensor if slot is None else slot.__get__(tensor)


def storage_of(torch: Any, tensor: Any) -> Storage | None:
    """Return a tensor's storage; None where `locate_storage` returns None."""
    place = locate_storage(torch, tensor)
    return None if place is None else Storage(*place, *_span_and_form(torch, tensor, place[2]))


def form_of(torch: Any, tensor: Any, size: int = 0) -> str:
    """Return a tensor's shape and dtype: `(64, 3, 7, 7) float32`.

    For a class with its own `__torch_dispatch__`, it is the name of the class.

    Args:
        torch: The user's torch; functions of subclasses must be disabled around the call.
        tensor: A tensor of any class, or an untyped storage.
        size: Bytes of its storage: a tensor that shows only a part of them is marked as a view.
    """
    return _span_and_form(torch, tensor, size)[1]


def shape_of(torch: Any, tensor: Any) -> tuple[int, ...] | None:
    """Return a tensor's shape; None where the user's code would compute it."""
    if dispatches(torch, type(tensor)):
        return None
    return tuple(torch.Tensor.shape.__get__(tensor))


def _span_and_form(torch: Any, tensor: Any, size: int) -> tuple[int, str]:
    tensor = local_of(tensor)
    if type(tensor) is torch.UntypedStorage:
        return 0, f"({size},) bytes"
    tensor = unwrapped(torch, tensor)
    if dispatches(torch, type(tensor)):  # the user's own code may compute its shape
        return 0, name_of(type(tensor))
    shape = tuple(torch.Tensor.shape.__get__(tensor))
    dtype = torch.Tensor.dtype.__get__(tensor)
    span = dtype.itemsize
    for length in shape:
        span *= int(length)
    view = VIEW if span < size else ""  # the bytes beside the name are those of the storage
    return span, f"{shape} {str(dtype).removeprefix('torch.')}{view}"


def dispatches(torch: Any, kind: Any) -> bool:
    """Return whether a tensor's class has its own `__torch_dispatch__`."""
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    off = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001
    for base in mro_of(kind):
        if base is torch.Tensor:
            return False
        handler = namespace_of(base).get("__torch_dispatch__")
        if handler is not None:
            return handler is not off
    return False
