"""Constructors of sparse and nested tensors: C++ would ask for a driver; a sentence says no."""

from __future__ import annotations

import functools
from typing import Any

import torch

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.moving import card_device, is_card
from nbmem.virtual.patches.patcher import Patch, wanted
from nbmem.virtual.tensors.shapes import no_such_tensors

_SPARSE = (
    "sparse_coo_tensor", "sparse_compressed_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
    "sparse_bsr_tensor", "sparse_bsc_tensor",
)  # fmt: skip
_NESTED = ("nested_tensor", "as_nested_tensor")


def layout_patches() -> list[Patch]:
    """The functions by their public names."""

    def dense_alone(name: str, true: Any) -> Any:
        @functools.wraps(true)
        def make(*args: Any, **kwargs: Any) -> Any:
            if _on_card(args, kwargs) and kwargs.get("layout") is not torch.jagged:
                raise no_such_tensors(f"as torch's {name} makes them")
            return true(*args, **kwargs)

        return make

    return [
        *wanted(torch, {n: dense_alone(n, getattr(torch, n)) for n in _SPARSE}),
        *wanted(torch.nested, {n: dense_alone(n, getattr(torch.nested, n)) for n in _NESTED}),
    ]


def stood_for(function: Any) -> Any:
    """What one of these functions stands for; any other function itself."""
    ours = getattr(function, "__code__", None) is not None and function.__globals__ is globals()
    return function.__wrapped__ if ours else function


def _on_card(args: Any, kwargs: Any) -> bool:
    device = kwargs.get("device")
    if device is not None:
        return is_card(card_device(device))
    flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
    return any(is_virtual(item) for item in flat)
