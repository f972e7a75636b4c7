"""Fourier transforms of half types, which only CUDA supports.

To C++ a virtual tensor is on another device, where torch's composites refuse float16. The
transforms here are the same steps. Other types take torch's own.

https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/SpectralOps.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.complex32)
_NORMS = {None: (0, 2), "backward": (0, 2), "forward": (2, 0), "ortho": (1, 1)}
"""Torch's number for no scale, by the root and by the number, forward and backward."""
_LAST_TWO = (-2, -1)


def _resized(tensor: torch.Tensor, dims: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Pad with zeros or cut to these sizes (resize_fft_input)."""
    padding = [0] * (2 * tensor.dim())
    for dim, size in zip(dims, sizes, strict=True):
        if tensor.size(dim) < size:
            padding[2 * (tensor.dim() - 1 - dim) + 1] = size - tensor.size(dim)
        elif tensor.size(dim) > size:
            tensor = tensor.narrow(dim, 0, size)
    return aten.constant_pad_nd.default(tensor, padding) if any(padding) else tensor


def _promoted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() else tensor.to(torch.complex32)


def _norm(norm: str | None, *, forward: bool) -> int:
    return _NORMS[norm][0 if forward else 1]


def _from_real(
    tensor: torch.Tensor, dims: list[int], norm: str | None, *, forward: bool, onesided: bool
) -> torch.Tensor:
    made = aten._fft_r2c.default(tensor, dims, _norm(norm, forward=forward), onesided)
    return made if forward else made.conj()


def _to_real(
    tensor: torch.Tensor, dims: list[int], norm: str | None, last: int, *, forward: bool
) -> torch.Tensor:
    tensor = tensor.conj() if forward else tensor
    number = _norm(norm, forward=forward)
    return aten._fft_c2r.default(tensor, dims, number, last)


def _between_complex(
    tensor: torch.Tensor, dims: list[int], norm: str | None, *, forward: bool
) -> torch.Tensor:
    number = _norm(norm, forward=forward)
    return aten._fft_c2c.default(tensor, dims, number, forward)


def along_one(kind: str, *, forward: bool) -> Callable[..., torch.Tensor]:
    """Return a transform along one dimension.

    Args:
        kind: "complex": of any input; "from real": half of its result; "to real": of such a half.
        forward: Its direction.
    """

    def transform(
        tensor: torch.Tensor, n: int | None = None, dim: int = -1, norm: str | None = None
    ) -> torch.Tensor:
        dim %= tensor.dim()
        if kind == "to real":
            tensor = _promoted(tensor)
            last = 2 * (tensor.size(dim) - 1) if n is None else n
            tensor = tensor if n is None else _resized(tensor, [dim], [n // 2 + 1])
            return _to_real(tensor, [dim], norm, last, forward=forward)
        tensor = tensor if n is None else _resized(tensor, [dim], [n])
        if tensor.is_complex():
            return _between_complex(tensor, [dim], norm, forward=forward)
        return _from_real(tensor, [dim], norm, forward=forward, onesided=kind == "from real")

    return transform


def along_several(
    kind: str, *, forward: bool, dims: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return a transform along several dimensions.

    Args:
        kind: "complex", "from real" or "to real", as for one dimension.
        forward: Its direction.
        dims: The dimensions if the program names none; None: the last ones, as many as `s` has, or
            all.
    """

    def transform(
        tensor: torch.Tensor,
        s: Sequence[int] | None = None,
        dim: Sequence[int] | None = dims,
        norm: str | None = None,
    ) -> torch.Tensor:
        if dim is None:
            dim = range(-len(s) if s is not None else -tensor.dim(), 0)
        where = [axis % tensor.dim() for axis in dim]
        sizes = [tensor.size(axis) for axis in where]
        if s is not None:
            sizes = [old if new == -1 else new for old, new in zip(sizes, s, strict=True)]
        if kind == "from real" and not forward:
            tensor = _resized(tensor, where, sizes)
            half = aten._fft_r2c.default(tensor, where[-1:], _norm(norm, forward=False), True)
            if not where[:-1]:
                return half.conj()
            half = half.conj_physical()
            return _between_complex(half, where[:-1], norm, forward=False)
        if kind == "from real":
            tensor = _resized(tensor, where, sizes)
            return _from_real(tensor, where, norm, forward=True, onesided=True)
        promoted = _promoted(tensor)
        if kind == "complex":
            resized = _resized(promoted, where, sizes)
            return _between_complex(resized, where, norm, forward=forward)
        last = sizes[-1] if s is not None and s[-1] != -1 else 2 * (sizes[-1] - 1)
        resized = _resized(promoted, where, [*sizes[:-1], last // 2 + 1])
        half = resized
        if forward and where[:-1]:
            half = _between_complex(resized, where[:-1], norm, forward=True)
        made = _to_real(half, where[-1:] if forward else where, norm, last, forward=forward)
        del half, resized, promoted  # as C++ leaves its variables, the last one first
        return made

    return transform


def _in_half(operator: Any, transform: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def choose(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if tensor.dtype in HALVES:
            return transform(tensor, *args, **kwargs)
        return operator.decompose(tensor, *args, **kwargs)

    return choose


def composites() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    """Yield each transform's operator name and its composite on CUDA."""
    one = {
        "fft": ("complex", True), "ifft": ("complex", False), "rfft": ("from real", True),
        "irfft": ("to real", False), "hfft": ("to real", True), "ihfft": ("from real", False),
    }  # fmt: skip
    for name, (kind, forward) in one.items():
        operator = getattr(aten, f"fft_{name}").default
        yield f"fft_{name}", _in_half(operator, along_one(kind, forward=forward))
        for tail, dims in (("n", None), ("2", _LAST_TWO)):
            operator = getattr(aten, f"fft_{name}{tail}").default
            several = along_several(kind, forward=forward, dims=dims)
            yield f"fft_{name}{tail}", _in_half(operator, several)
