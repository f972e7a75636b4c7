"""Zero-filled host memory without resident pages until it is written.

Its pages are given back with `MADV_DONTNEED`, because the heap reuses memory that was written
before; memory from numpy could not be resized.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import _C

_Base: Any = _C.StorageBase


def untouched(nbytes: int) -> torch.UntypedStorage:
    """Allocate a CPU storage of zeros in pages that nothing has touched.

    Known limit: on other systems than Linux it is not resizable, as one that comes from numpy.

    Raises:
        MemoryError: This machine cannot reserve so much.
    """
    if not sys.platform.startswith("linux"):  # elsewhere MADV_DONTNEED does not mean zeros at once
        pages = np.zeros(nbytes, np.uint8)
        with _C._DisableTorchDispatch():
            return torch.from_numpy(pages).untyped_storage()
    try:
        storage = torch.UntypedStorage(nbytes, device="cpu")
    except RuntimeError as err:
        raise MemoryError(str(err)) from None
    # The heap reuses memory that has been written before: whole pages are given back to the
    # system, which fills them with zeros when they are read.
    begin = _Base.data_ptr(storage)
    first, last = -(-begin // mmap.PAGESIZE), (begin + nbytes) // mmap.PAGESIZE
    start, length = first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
    if length <= 0 or _madvise()(start, length, mmap.MADV_DONTNEED):
        ctypes.memset(begin, 0, nbytes)
        return storage
    ctypes.memset(begin, 0, start - begin)
    ctypes.memset(start + length, 0, begin + nbytes - start - length)
    return storage


@cache
def _madvise() -> Any:
    """Return the C library's madvise."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
