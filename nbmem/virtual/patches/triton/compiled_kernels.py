"""Compiled Triton kernels, for their registers, code or scratch.

Triton's compiler needs no card: it compiles for the one that is named. That takes seconds, so it is
done only where a result depends on it.

https://github.com/triton-lang/triton/blob/v3.7.1/python/triton/compiler/compiler.py: CompiledKernel
"""

from __future__ import annotations

import copy
import importlib
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from nbmem.core.errors import NbmemError
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.warnings import unknown_scratch

MOST_THREADS = 1024
"""Threads in a block, of every card."""
_USED = re.compile(r"REG:(\d+) STACK:(\d+).*? LOCAL:(\d+)")
_REGISTER_BYTES = 4
PATIENCE_S = 30.0
"""Seconds of a program for compiling kernels of which only the scratch memory is needed."""
_SCRATCH = ("make_tensor_descriptor", "global_scratch")
"""Parts of the names of what takes scratch in a kernel."""


class TensorDescription:
    """A tensor argument of a launch, without the tensor's memory.

    It has what its kernel is compiled for: the type and the alignment of the address.

    Args:
        tensor: The tensor, to which no reference is held.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.shape = tuple(tensor.shape)
        self._strides = tensor.stride()
        self._address = tensor.data_ptr()

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides, as torch.Tensor.stride() does."""
        return self._strides if dim is None else self._strides[dim]

    def data_ptr(self) -> int:
        """Return the address, as torch.Tensor.data_ptr() does.

        A kernel for a multiple of 16 is another kernel.
        """
        return self._address

    @staticmethod
    def ptr_range() -> int:
        """Return 0, as Triton's own MockTensor does."""
        return 0


class LazyKernel:
    """The result of a launch in place of the compiled kernel.

    The kernel is compiled when an attribute of it is read.

    Args:
        name: The kernel's.
        compiled: Compiles it; holds no tensor.
        loaded: Whether a launch has put it on the card, so that its registers are known.
    """

    def __init__(self, name: str, compiled: Callable[[], Any], *, loaded: bool) -> None:
        self.name = name
        self._compiled = compiled
        self._loaded = loaded

    def kernel(self, asked: str) -> Any:
        """Return the compiled kernel.

        Raises:
            AttributeError: It cannot be compiled here.
        """
        try:
            return self._compiled()
        except NbmemError:
            raise
        except Exception as err:  # noqa: BLE001 - whatever a compiler does
            raise AttributeError(
                f"{asked} of the kernel {self.name} is not known on a virtual GPU: it is compiled "
                f"when a program asks, and that failed ({type(err).__name__}: {str(err)[:200]}). "
                "Choose the launch without it, as by card and shape."
            ) from None

    def __getattr__(self, asked: str) -> Any:
        kernel = self.kernel(asked)
        if self._loaded:
            kernel._init_handles()
        return getattr(kernel, asked)

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel("a launch")[grid]


class ScratchLauncher:
    """A launcher that takes a kernel's scratch memory on the card.

    The memory comes from the program's allocator. Nothing is launched.

    Args:
        metadata: Triton's metadata of the kernel.
        launched: Called with the kernel's arguments.
    """

    def __init__(self, metadata: Any, launched: Callable[[tuple[Any, ...]], None]) -> None:
        self._metadata = metadata
        self._launched = launched

    def __call__(self, *args: Any) -> None:
        """Take a launch's scratch memory and report its arguments.

        The arguments are three sizes of the grid, the stream, four more of Triton's, and the
        kernel's.
        """
        scratch = take_scratch(self._metadata, args[:3], args[3])
        self._launched(args[8:])
        del scratch


class Scratch:
    """Scratch memory of launches, found by compiling each kernel once.

    A tuner's configurations take the same in each block. Compiling ends after `PATIENCE_S` in all;
    kernels that come then are noted as unknown.

    Args:
        note: Called with a text about what is not counted.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._spent_s = 0.0

    def of(self, function: Any, kernel: LazyKernel, values: Iterable[Any]) -> Any:
        """Return Triton's metadata of a kernel; None if it is not known.

        Args:
            function: The kernel as it was written.
            kernel: As it is launched.
            values: What it is launched with: what is left out or switched off makes another one.
        """
        switches = [value if value is None or type(value) is bool else 0 for value in values]
        key = (id(function), *switches)
        if key not in self._known:
            metadata = self._compiled(kernel) if self._spent_s < PATIENCE_S else None
            if metadata is None:
                self._note(unknown_scratch(kernel.name))
            self._known[key] = function, metadata
        return self._known[key][1]

    def _compiled(self, kernel: LazyKernel) -> Any:
        begun = time.monotonic()
        try:
            return kernel.kernel("scratch").metadata
        except AttributeError:
            return None
        finally:
            self._spent_s += time.monotonic() - begun


def take_scratch(metadata: Any, grid: Sequence[int], stream: Any) -> Any:
    """Allocate a launch's scratch memory; None if it needs none.

    The memory comes from the allocator that the program set.
    """
    size = getattr(metadata, "global_scratch_size", 0)
    if not size:
        return None
    total = size * getattr(metadata, "num_ctas", 1) * math.prod(grid)
    return _allocator()(total, metadata.global_scratch_align, stream)


def without_memory(value: Any) -> Any:
    """Return an argument of a launch without the memory behind it."""
    if is_virtual(value):
        return TensorDescription(value)
    if isinstance(value, (list, tuple)):
        parts = [without_memory(item) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(getattr(value, "base", None), torch.Tensor):  # a descriptor, another type's view
        alike = copy.copy(value)
        alike.base = without_memory(value.base)
        return alike
    return value


def register_usage(name: str, kernel: bytes) -> tuple[int, int]:
    """Return registers and spilled registers of each thread.

    NVIDIA's tool cuobjdump reads them in the kernel.
    """
    knobs = importlib.import_module("triton.knobs")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(kernel)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
        assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - Triton's own tool
    found = _USED.search(assembly[assembly.find(name) :])
    if found is None:
        raise ValueError(f"{Path(command[0]).name} names no registers of {name}")
    registers, stack, local = map(int, found.groups())
    return registers, (stack + local) // _REGISTER_BYTES


def may_take_scratch(kernel: Any) -> bool:
    """Return whether a launch may take memory of the program's allocator.

    The size is only known after compiling the kernel. A launch may take scratch if two things hold.
    The program has set an allocator. The kernel, or what it calls, makes descriptors on the card
    or names scratch. A library may set an allocator for all kernels, and each compile takes
    seconds.
    """
    parts = sys.modules.get("triton.runtime._allocation")
    unset = getattr(parts, "NullAllocator", None)
    if unset is None or isinstance(_allocator(), unset):
        return False
    met: dict[int, Any] = {}
    waiting = [kernel]
    while waiting:
        inner = waiting.pop()
        function = getattr(inner, "fn", None)
        if id(inner) in met or not isinstance(function, FunctionType):
            continue
        met[id(inner)] = inner
        names = function.__code__.co_names
        if any(sign in name for name in names for sign in _SCRATCH):
            return True
        waiting += [function.__globals__.get(name) for name in names]
    return False


def _allocator() -> Any:
    parts: Any = sys.modules["triton.runtime._allocation"]
    return parts._allocator.get()
