"""Workspaces of cuBLAS handles, and the memory of libraries' handles."""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING

from nbmem.allocator.cublas import WORKSPACE_LT
from nbmem.virtual.hardware.cudnn.kernel_cache import KernelCache
from nbmem.virtual.hardware.memory_history import in_engine

if TYPE_CHECKING:
    from nbmem.virtual.hardware.cudnn.problem import Kernels
    from nbmem.virtual.hardware.gpu import VirtualGPU


class Workspaces:
    """The workspaces and library handles of each thread on one card.

    On a real card autograd runs backward in a thread of its own, with handles of its own.

    Attributes:
        handle_bytes: Process memory of handles outside of torch's allocator.
        kernels: The convolution kernels that each thread found.
        asked: Workspace bytes that the program set through torch.backends.cuda, by library.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._held: dict[tuple[str, str, int, int], int] = {}
        self._sizes: dict[tuple[str, str, int, int], int] = {}
        self._handles: set[tuple[str, str, int]] = set()
        self._callers: dict[threading.Thread, int] = {}
        self.kernels = KernelCache(gpu)
        self.handle_bytes = 0
        self.asked: dict[str, int] = {}

    def blas(self, *, lt: bool = False) -> None:
        """Create the cuBLAS handle and workspace of a matrix product's thread.

        A thread and a stream have one workspace; cuBLASLt may have its own.
        """
        role, thread = self._role()
        card = self._gpu.card
        self._handle("cublas", card.cublas_bytes)
        stream = self._gpu.stream.handle
        kinds = [("cublas", self.cublas_size)]
        if lt and not self._unified:
            kinds.append(("cublaslt", self.cublaslt_size))
        for kind, size in kinds:
            key = (kind, role, thread, stream)
            if size > self._sizes.get(key, 0):
                self._grow(key, size)

    def _grow(self, key: tuple[str, str, int, int], size: int) -> None:
        """Replace a workspace by a larger one.

        Threads that run backward share the engine's workspace.
        """
        with self._gpu.lock:
            if size > self._sizes.get(key, 0):
                smaller = self._held.get(key)
                self._held[key], self._sizes[key] = self._gpu.take(size), size
                if smaller is not None:  # it is freed after the larger one is allocated
                    self._gpu.give(smaller)

    def dnn(self, kernels: Kernels | None = None) -> None:
        """Create a thread's cuDNN handle at its first cuDNN kernel.

        Args:
            kernels: Those among which a convolution chooses.
        """
        self._handle("cudnn", self._gpu.card.cudnn_bytes)
        if kernels is not None:
            self.kernels.run(kernels, self._role())

    def nccl(self) -> None:
        """Account once per process for NCCL's channels, which the driver holds."""
        self._make(("nccl", "process", 0), self._gpu.card.nccl_bytes)

    def holds(self, addr: int) -> bool:
        """Return whether a block is one of the workspaces."""
        with self._gpu.lock:
            return addr in self._held.values()

    @property
    def nbytes(self) -> int:
        """Bytes of all workspaces, as requested."""
        with self._gpu.lock:
            return sum(self._sizes.values())

    def clear(self) -> None:
        """Free all workspaces, as torch._C._cuda_clearCublasWorkspaces does."""
        with self._gpu.lock:
            held, self._held, self._sizes = self._held, {}, {}
        for addr in held.values():
            self._gpu.give(addr)

    @property
    def cublas_size(self) -> int:
        """Bytes of one cuBLAS workspace."""
        if "cublas" in self.asked:
            return self.asked["cublas"]
        asked = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
        parts = [int(part) for part in asked.split(":") if part.isdigit()]
        if parts and len(parts) % 2 == 0:
            return sum(k * n << 10 for k, n in zip(parts[::2], parts[1::2], strict=True))
        return self._gpu.card.arch.cublas_workspace

    @property
    def cublaslt_size(self) -> int:
        """Bytes of one cuBLASLt workspace, where it has its own."""
        return self.asked.get("cublaslt", WORKSPACE_LT)

    @property
    def _unified(self) -> bool:
        """True if cuBLASLt shares cuBLAS's workspace, as newer releases allow."""
        shared = self._gpu.rules.shares_blas_workspace
        return shared and os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") != "0"

    def _handle(self, library: str, size: int) -> None:
        key = (library, *self._role())
        if key not in self._handles:
            self._make(key, size)

    def _make(self, handle: tuple[str, str, int], size: int) -> None:
        with self._gpu.lock:
            if handle not in self._handles:
                self._handles.add(handle)
                self.handle_bytes += size

    def _role(self) -> tuple[str, int]:
        """Return the role of this thread on a real card, and its handle number.

        A thread that ends leaves its handle to the next one (PoolWindow of DeviceThreadHandles.h).
        """
        if in_engine():
            return "engine", 0
        thread = threading.current_thread()
        number = self._callers.get(thread)
        if number is None:
            with self._gpu.lock:
                others = {t: n for t, n in self._callers.items() if t.is_alive()}
                taken = set(others.values())
                number = next(n for n in itertools.count() if n not in taken)
                self._callers = {**others, thread: number}  # others read it without the lock
        return "caller", number
