"""Patches of cuBLASLt that let cuDNN list its kernels without a card.

Some convolutions are matrix products of cuBLASLt: windows of one on the contiguous format, those in
the frequency domain, and Winograd's in three steps. cuBLASLt makes no handle without a card, so
cuDNN leaves these kernels out of its lists. On a card they head many of them.
The patched cuBLASLt reports that it has a product, as it does on every card. Nothing is launched.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_READ, _WRITE, _EXECUTE = 1, 2, 4
_JUMP = b"\x48\xb8%b\xff\xe0"
"""movabs rax, ADDRESS; jmp rax: rax carries no argument in the x86-64 calling convention."""
_SUCCESS = 0


class _Algorithm(ctypes.Structure):
    """The struct cublasLtMatmulHeuristicResult_t of cublasLt.h."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _made(*_: Any) -> int:
    return _SUCCESS


def _find(*arguments: Any) -> int:
    """Report one algorithm without a workspace; cuDNN checks for existence."""
    out = ctypes.cast(arguments[-2], ctypes.POINTER(_Algorithm))
    ctypes.memset(arguments[-2], 0, ctypes.sizeof(_Algorithm))
    out[0].waves = 1.0
    ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int))[0] = 1
    return _SUCCESS


_pointers = (ctypes.c_void_p,)
_ANSWERS: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "cublasLtCreate": (_made, _pointers),
    "cublasLtDestroy": (_made, _pointers),
    "cublasLtMatmulAlgoGetHeuristic": (
        _find,
        (*_pointers * 7, ctypes.c_int, *_pointers * 2),
    ),
}
_kept: list[Any] = []  # ctypes frees a callback without references


def patch_cublaslt(cudnn: Path) -> bool:
    """Patch the cuBLASLt that `cudnn` will load to report an algorithm.

    The patch changes only this process.

    The name of cuDNN's library does not contain the CUDA release that it is made for. If there are
    two, of torch and of another framework, both are patched.

    Returns:
        False where there is none, or this machine's code is not x86-64: cuDNN's lists would lack
        these kernels.
    """
    if platform.machine() != "x86_64":
        return False
    places = sorted(cudnn.parents[2].glob("*/lib"))
    paths = [place / name for place in places for name in _SONAMES]
    found = [ctypes.CDLL(str(path)) for path in paths if path.exists()]
    return bool(found) and all(_answer(library) for library in found)


def _answer(library: ctypes.CDLL) -> bool:
    return all(
        _overwrite(_address(getattr(library, name)), _jump(function, arguments))
        for name, (function, arguments) in _ANSWERS.items()
    )


def _jump(function: Callable[..., int], arguments: tuple[Any, ...]) -> bytes:
    """Return machine code that jumps to `function`."""
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(function)
    _kept.append(callback)
    return _JUMP % _address(callback).to_bytes(8, "little")


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _overwrite(address: int, code: bytes) -> bool:
    """Replace a function's first bytes in this process; return success.

    The written pages are private to the process from then on.
    """
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    pages = ctypes.c_void_p(start), ctypes.c_size_t(address + len(code) - start)
    if protect(*pages, _READ | _WRITE | _EXECUTE):
        return False
    ctypes.memmove(address, code, len(code))
    return not protect(*pages, _READ | _EXECUTE)
