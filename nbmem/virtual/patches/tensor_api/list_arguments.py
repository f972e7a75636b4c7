"""Lists of numbers and tensors that constructors take.

A class with `__getitem__` in Python, as torch.Tensor has here (indexing.py), is a sequence to C++.
C++ then reads the length of a tensor without dimensions. So each such tensor is replaced by its
number.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_NESTED = (list, tuple)
_HOLDING = (torch.Tensor, torch.UntypedStorage, *_NESTED)


def replace_tensors(data: Any, dtype: torch.dtype | None = None) -> tuple[Any, torch.dtype | None]:
    """Return nested data with numbers in place of tensors, and a dtype.

    Args:
        data: Numbers, or lists of them, or anything else, which stays.
        dtype: The requested type; None: the common type of the tensors and the numbers.

    Raises:
        ValueError: A tensor in a list has several elements.
    """
    if not (isinstance(data, _NESTED) and any(isinstance(item, _HOLDING) for item in data)):
        return data, dtype
    kinds: set[torch.dtype] = set()
    found: list[bool] = []
    numbers = _numbers(data, kinds, found)
    if not found:
        return data, dtype
    if dtype is None and kinds:
        dtype = functools.reduce(torch.promote_types, kinds)
    return numbers, dtype


def _numbers(data: Any, kinds: set[torch.dtype], found: list[bool]) -> Any:
    if isinstance(data, _NESTED):
        return [_numbers(item, kinds, found) for item in data]
    if isinstance(data, torch.Tensor):
        found.append(True)
        kinds.add(data.dtype)
        if data.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return data.item()
    kind = _KINDS.get(type(data))
    if kind is not None:
        kinds.add(torch.get_default_dtype() if kind is torch.float32 else kind)
    return data


_KINDS = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}
