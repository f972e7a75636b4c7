"""Scratch memory that cuBLAS keeps for each handle, and what the libraries' handles cost."""

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
    """Which handle of which thread already has its workspace.

    Autograd runs backward in a thread of its own on a real card, so its handles are others than
    those of forward.

    Attributes:
        handle_bytes: Process memory that handles cost outside of torch's allocator.
        asked: Bytes of a workspace that the program asked for by torch.backends.cuda, by library.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._held: dict[tuple[str, str, int, int], int] = {}
        self._sizes: dict[tuple[str, str, int, int], int] = {}
        self._handles: set[tuple[str, str, int]] = set()
        self._callers: dict[threading.Thread, int] = {}
        self._kernels = KernelCache(gpu)
        self.handle_bytes = 0
        self.asked: dict[str, int] = {}

    def blas(self, *, lt: bool = False) -> None:
        """A matrix product is launched: make its handle and workspace if it is the first."""
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
        """Take a larger workspace; threads that run backward share the engine's."""
        with self._gpu.lock:
            if size > self._sizes.get(key, 0):
                smaller = self._held.get(key)
                self._held[key], self._sizes[key] = self._gpu.take(size), size
                if smaller is not None:  # it goes when the larger one is there
                    self._gpu.give(smaller)

    def dnn(self, kernels: Kernels | None = None) -> None:
        """A cuDNN kernel is launched: make its handle if it is the first.

        Args:
            kernels: Those among which a convolution chooses.
        """
        self._handle("cudnn", self._gpu.card.cudnn_bytes)
        if kernels is not None:
            self._kernels.run(kernels, self._role())

    def nccl(self) -> None:
        """A communicator is made: its channels are the driver's memory, one for the process."""
        self._make(("nccl", "process", 0), self._gpu.card.nccl_bytes)

    def holds(self, addr: int) -> bool:
        """Whether a block is one of the workspaces."""
        with self._gpu.lock:
            return addr in self._held.values()

    @property
    def nbytes(self) -> int:
        """Bytes of the workspaces that there are, as they were asked for."""
        with self._gpu.lock:
            return sum(self._sizes.values())

    def clear(self) -> None:
        """Free every workspace, as torch._C._cuda_clearCublasWorkspaces does."""
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
        """Whether cuBLASLt works in cuBLAS's workspace, which newer releases let it."""
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
        """Which thread of a real card's process would do this, and the number of its handle.

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
