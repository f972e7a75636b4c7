"""Compare operators on small inputs with the CPU.

    python -m tests.virtual.small_inputs [--every N] [NAME ...]

takes the samples of torch's database that are without dimensions, empty or of one element, and the
first sample shrunk to such sizes. Each runs forward and backward on the CPU and on a virtual card.
Printed is every case that raises on the card alone, or whose result or gradient has another shape,
type or stride.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nbmem import virtual
from tests.oracle.samples import on_card, seeded
from tests.virtual.opinfo import DTYPES, database, described

ALIKE, RAISES, OTHER = "alike", "raises on the card alone", "other geometry"
_ROWS = "cuSOLVER gives V where LAPACK gives its transpose: LinearAlgebra.cpp, _linalg_svd"
DIFFERENT_ON_CUDA = {
    "_native_batch_norm_legit": "without training CUDA returns the statistics: Normalization.cu",
    "linalg.svd": _ROWS,
    "native_batch_norm": "without training CUDA returns the statistics: Normalization.cu",
    "nonzero_static": "CUDA stores the places dimension by dimension: Nonzero.cu",
    "pca_lowrank": _ROWS,
    "sparse.mm": "of a sparse matrix and a kind of reduction only the CPU has a kernel",
    "svd": _ROWS,
    "svd_lowrank": _ROWS,
    "tensor_split": "the places are those of a tensor on the CPU on every device",
}
"""Operators whose differences are torch's own, and where it has them from."""
CRASH_ON_THE_CPU = {"_chunk_cat", "_segment_reduce", "nn.functional.pdist"}
"""Operators whose kernels on the CPU end the process for shrunk samples."""
Arguments = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _scalar(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[0] if tensor.numel() else tensor.new_ones(())


def _one_element(tensor: torch.Tensor) -> torch.Tensor:
    for dim, size in enumerate(tensor.size()):
        tensor = tensor.narrow(dim, 0, min(size, 1))
    return tensor


def _first_empty(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.narrow(0, 0, 0) if tensor.dim() else tensor


def _last_empty(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.narrow(-1, 0, 0) if tensor.dim() else tensor


SHRINKS = (_scalar, _one_element, _first_empty, _last_empty)


def is_small(arguments: Arguments) -> bool:
    """Return whether a tensor argument has at most one element."""
    return any(t.numel() <= 1 for t in _tensors(arguments))


def shrunk(arguments: Arguments) -> Iterator[Arguments]:
    """Yield the arguments with smaller tensors."""
    source, args, kwargs = arguments
    for shrink in SHRINKS:
        change = _changed(shrink)
        yield change(source), args, kwargs
        whole = pytree.tree_map(change, arguments)
        yield whole
        yield pytree.tree_map(lambda v: 0 if type(v) is int else v, whole)


def _changed(shrink: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        return shrink(value.detach()).clone().requires_grad_(value.requires_grad)

    return change


def small_cases(op: Any, dtype: torch.dtype) -> Iterator[tuple[Arguments, bool]]:
    """Yield small arguments of an operator, and whether it is trained."""
    trained = op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")
    seeded(torch)
    samples = op.sample_inputs("cpu", dtype, requires_grad=trained)
    for number, sample in enumerate(samples):
        arguments = (sample.input, sample.args, sample.kwargs)
        if is_small(arguments):
            yield arguments, trained
        if not number and op.name not in CRASH_ON_THE_CPU:
            for smaller in shrunk(arguments):
                yield smaller, trained


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def run(op: Any, arguments: Arguments, *, trained: bool) -> list[list[Any]]:
    """Return the geometry of results and gradients."""
    source, args, kwargs = arguments
    result = op.op(source, *args, **kwargs)
    forward = described(result, arguments)
    if not trained:
        return [forward]
    roots = [t for t in _tensors(result) if t.requires_grad]
    leaves = [t for t in _tensors(arguments) if t.requires_grad]
    if not roots or not leaves:
        return [forward]
    given = [torch.ones_like(root) for root in roots]
    return [forward, described(torch.autograd.grad(roots, leaves, given, allow_unused=True), ())]


def differences(op: Any, every: int = 1) -> Iterator[tuple[str, str]]:
    """Yield each case of an operator and its difference, or "".

    Args:
        op: The OpInfo; a virtual card must be active.
        every: Take one case of so many.
    """
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cuda"):
            continue
        for number, (arguments, trained) in enumerate(small_cases(op, dtype)):
            if number % every:
                continue
            moved = pytree.tree_map(lambda v: on_card(torch, v), arguments)
            for training in (False, True)[: 1 + trained]:
                try:
                    expected = run(op, arguments, trained=training)
                except Exception:  # noqa: BLE001 - not for the CPU's kernel
                    break
                try:
                    found: Any = run(op, moved, trained=training)
                except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
                    found = f"{type(err).__name__}: {str(err)[:160]}"
                if found == expected:
                    yield ALIKE, ""
                    continue
                label = f"{op.formatted_name} {dtype} {'backward' if training else 'forward'} "
                kind = RAISES if isinstance(found, str) else OTHER
                yield kind, f"{label}{_said(arguments)}: {found}, on the CPU {expected}"
                break


def _said(arguments: Arguments) -> str:
    """Describe the arguments briefly: tensors by their shape."""

    def word(value: Any) -> Any:
        return tuple(value.size()) if isinstance(value, torch.Tensor) else value

    return str(pytree.tree_map(word, arguments))[:200]


def main() -> int:
    """Print the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with virtual.activated("H100"):
        for op in database():
            if (options.names and op.name not in options.names) or op.name in DIFFERENT_ON_CUDA:
                continue
            for kind, line in differences(op, options.every):
                counts[kind] += 1
                if line:
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
    sys.stdout.write(f"{counts.total()} cases: {dict(counts)}\n")
    return 1 if counts.total() > counts[ALIKE] else 0


if __name__ == "__main__":
    sys.exit(main())
