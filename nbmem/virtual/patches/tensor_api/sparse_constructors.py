"""Constructors of sparse and nested tensors.

Their C++ would require a driver.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card
from nbmem.virtual.tensors import sparse
from nbmem.virtual.tensors.unsupported import no_such_tensors

_COMPRESSED = {
    "sparse_csr_tensor": torch.sparse_csr,
    "sparse_csc_tensor": torch.sparse_csc,
    "sparse_bsr_tensor": torch.sparse_bsr,
    "sparse_bsc_tensor": torch.sparse_bsc,
    "sparse_compressed_tensor": None,
}
_NESTED = ("nested_tensor", "as_nested_tensor")


def layout_patches() -> list[Patch]:
    """Return patches of the constructors, by their public names."""

    def made_by(original: Any, own: Any) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            return (own if _on_card(args, kwargs) else original)(*args, **kwargs)

        return make

    def nested(name: str) -> Any:
        original = getattr(torch.nested, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("layout") is not torch.jagged:
                raise no_such_tensors(f"as torch's {name} makes them")
            return original(*args, **kwargs)

        return made_by(original, make)

    constructors = {"sparse_coo_tensor": made_by(torch.sparse_coo_tensor, _coo)}
    for name, layout in _COMPRESSED.items():
        own = functools.partial(_compressed, known=layout)
        constructors[name] = made_by(getattr(torch, name), own)
    return [
        *patches_of(torch, constructors),
        *patches_of(torch.nested, {name: nested(name) for name in _NESTED}),
    ]


def _coo(  # noqa: PLR0913 - torch's signature
    indices: Any,
    values: Any = None,
    size: Any = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    is_coalesced: bool | None = None,
    **_: Any,
) -> torch.Tensor:
    """Make a COO tensor from indices and values, or from a size alone.

    As `torch.sparse_coo_tensor(indices, values, size)` and `torch.sparse_coo_tensor(size)` do.
    """
    if values is None:
        made = torch.ops.aten.sparse_coo_tensor.size(
            size if indices is None else indices, dtype=dtype, device=card_device(device)
        )
        return made.requires_grad_(requires_grad)
    where = _home(device, values, indices)
    values = _to_device(values, where, dtype)
    indices = _to_device(indices, where, torch.int64)
    marks = {} if is_coalesced is None else {"is_coalesced": is_coalesced}
    if size is None:
        made = torch.ops.aten.sparse_coo_tensor.indices(indices, values, **marks)
    else:
        made = torch.ops.aten.sparse_coo_tensor.indices_size(indices, values, size, **marks)
    return made.requires_grad_() if requires_grad else made


_OUTER = ("crow_indices", "ccol_indices", "compressed_indices")
_INNER = ("col_indices", "row_indices", "plain_indices")


def _compressed(
    *given: Any,
    known: torch.layout | None,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **named: Any,
) -> torch.Tensor:
    """Make a compressed tensor, as `torch.sparse_csr_tensor` and others.

    Without a size it is as large as the indices require.
    """
    outer, inner, values, size = (
        given[place] if place < len(given) else next((named[n] for n in names if n in named), None)
        for place, names in enumerate((_OUTER, _INNER, ("values",), ("size",)))
    )
    where = _home(device, values, inner)
    values, outer, inner = (
        _to_device(values, where, dtype),
        _to_device(outer, where),
        _to_device(inner, where),
    )
    wanted_layout = known or layout or torch.sparse_csr
    if size is None:
        along = int(inner.max()) + 1
        across = outer.numel() - 1
        size = (across, along) if wanted_layout in sparse.ROWS else (along, across)
    made = sparse.compressed(tuple(size), wanted_layout, outer, inner, values)
    return made.requires_grad_() if requires_grad else made


def _to_device(data: Any, device: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a constructor's data as a tensor on a device.

    Autograd records the move of a tensor if it tracks the tensor.
    """
    if isinstance(data, torch.Tensor):
        return data.to(device, dtype or data.dtype)
    return torch.as_tensor(data, dtype=dtype, device=device)


def _home(device: Any, values: Any, indices: Any) -> Any:
    """Return the device that was asked for, else that of the data.

    That is the device of the values if they are virtual, else that of the indices.
    """
    if device is not None:
        return card_device(device)
    return values.device if is_virtual(values) else indices.device


def original_constructor(function: Any) -> Any:
    """Return the function that a patched constructor replaces.

    Any other function is returned itself.
    """
    ours = getattr(function, "__code__", None) is not None and function.__globals__ is globals()
    return function.__wrapped__ if ours else function


def _on_card(args: Any, kwargs: Any) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return is_card(card_device(device))
    given = [*args, *kwargs.values()]
    flat = [x for arg in given for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
    return any(is_virtual(item) for item in flat)
