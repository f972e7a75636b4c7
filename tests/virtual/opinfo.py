"""Compare OpInfo samples on the virtual card with the CPU.

    python -m tests.virtual.opinfo [NAME ...]

prints every difference in shape, type, strides and shared storage, and what raises on the card
alone; without names for all operators, in some twenty minutes. Not every difference is a fault:
CUDA has strides of its own for some, and a shape that depends on values is a bound; some ask for
their `out=` or an index below the functions that a virtual card replaces.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nbmem import virtual

DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
_SAMPLES = 5


def database() -> list[Any]:
    """Return all of torch's OpInfos."""
    sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault(
        "TestCase", unittest.TestCase
    )
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def differences(op: Any) -> Iterator[str]:
    """Yield the differences of one operator, one a line."""
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cuda"):
            continue
        samples = list(op.sample_inputs("cpu", dtype))
        for sample in samples[:: max(1, len(samples) // _SAMPLES)]:
            arguments = (sample.input, sample.args, sample.kwargs)
            try:
                expected = described(_run(op, arguments), arguments)
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue  # Not for the CPU's kernel.
            moved = pytree.tree_map(_on_card, arguments)
            try:
                found = described(_run(op, moved), moved)
            except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
                yield f"{op.formatted_name} {dtype}: {type(err).__name__}: {str(err)[:200]}"
                continue
            if found != expected:
                yield f"{op.formatted_name} {dtype}: {found}, on the CPU {expected}"


def _run(op: Any, arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Any:
    source, args, kwargs = arguments
    return op.op(source, *args, **kwargs)


def _on_card(value: Any) -> Any:
    """Copy arguments to the card with the same geometry."""
    if value == "cpu" if isinstance(value, str) else value == torch.device("cpu"):
        return "cuda"
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    count = value.untyped_storage().nbytes() // value.element_size()
    whole = value.detach().resolve_conj().resolve_neg()
    if whole.is_contiguous() and whole.numel() == count:
        return whole.cuda()
    flat = torch.empty(count, dtype=value.dtype).cuda()
    return flat.as_strided(value.size(), value.stride(), value.storage_offset())


def described(result: Any, arguments: Any) -> list[Any]:
    """Describe geometry, type and shared storage of each result."""
    tensors = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    places = {
        t.untyped_storage()._cdata: at
        for at, t in reversed(list(enumerate(tensors)))
        if t.layout is torch.strided
    }
    rows: list[Any] = []
    for value in pytree.tree_leaves(result):
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            rows.append(str(getattr(value, "layout", type(value).__name__)))
            continue
        shared = places.get(value.untyped_storage()._cdata) if value.numel() else None
        steps = [s for n, s in zip(value.size(), value.stride(), strict=True) if n != 1]
        rows.append((tuple(value.size()), value.dtype, value.numel() and tuple(steps), shared))
    return rows


def main() -> int:
    """Print the differences; return 1 if there are any."""
    names = set(sys.argv[1:])
    seen: set[str] = set()
    different: set[str] = set()
    warnings.simplefilter("ignore")
    with virtual.activated("H100"):
        for op in database():
            if names and op.name not in names:
                continue
            seen.add(op.name)
            for line in dict.fromkeys(differences(op)):
                different.add(op.name)
                sys.stdout.write(line + "\n")
    sys.stdout.write(f"{len(seen - different)} of {len(seen)} operators are as on the CPU\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
