"""Read the rows of the batch that a module is called with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbmem.capture.tensors.modules import is_plain_sequence, is_tensor
from nbmem.capture.tensors.tensor_storages import dispatches
from nbmem.capture.tensors.tensors import without_torch_function


def batch_rows(torch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return the first dimension of the first tensor given.

    These are usually the rows of a batch. None if there is no such tensor.
    """
    with without_torch_function():
        return _first_rows(torch, args, kwargs)


def _first_rows(torch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    for value in (*args, *kwargs.values()):
        if is_plain_sequence(value):
            value = next(iter(value), None)  # noqa: PLW2901 - a list of inputs
        if is_tensor(value) and not dispatches(torch, type(value)):
            shape = torch.Tensor.shape.__get__(value)
            if len(shape):
                return int(shape[0])
    return None
