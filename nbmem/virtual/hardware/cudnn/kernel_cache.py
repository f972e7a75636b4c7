"""The kernel of each convolution, found and cached as in torch.

Torch takes the first kernel of cuDNN's list whose workspace fits, so that on a full card it uses
a smaller one. With `torch.backends.cudnn.benchmark` it tries all of them once: that takes the
largest workspace of the list and then empties the cache, whichever kernel wins.
https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cudnn/Conv_v8.cpp
(run_single_conv, generate_and_filter_plans)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from nbmem.core.session.events import BlockState
from nbmem.virtual.warnings import NOT_ASKED

if TYPE_CHECKING:
    from nbmem.virtual.hardware.cudnn.problem import Kernels, Problem
    from nbmem.virtual.hardware.gpu import VirtualGPU

NO_KERNEL = "{} was unable to find an engine to execute this computation"


class KernelCache:
    """The convolution kernels that each thread found on one card.

    Attributes:
        trying: The thread and the convolution whose workspace is requested now, or None. If there
            is no memory for it, another kernel is taken.
    """

    def __init__(self, gpu: VirtualGPU) -> None:
        self._gpu = gpu
        self._found: dict[tuple[object, Problem], int] = {}
        self.trying: tuple[object, Problem] | None = None

    def run(self, kernels: Kernels, thread: object) -> None:
        """Run a convolution: take and free the workspace of its kernel.

        Args:
            kernels: The kernels that support it.
            thread: The thread that runs it; each has a cache of its own.

        Raises:
            RuntimeError: Not even the smallest workspace fits; in torch's words.
        """
        self.trying = key = thread, kernels.problem
        try:
            self._run(kernels, key)
        finally:
            self.trying = None

    def _run(self, kernels: Kernels, key: tuple[object, Problem]) -> None:
        if key in self._found and self._fits(self._found[key]):
            return
        if kernels.doubtful:
            self._gpu.note(NOT_ASKED)
        measures = torch._C._get_cudnn_benchmark()
        for size in self._measured(kernels) if measures else _in_order(kernels):
            if self._fits(size):
                self._found[key] = size
                return
        raise RuntimeError(NO_KERNEL.format("FIND" if measures else "GET"))

    def _measured(self, kernels: Kernels) -> list[int]:
        """Run all kernels as benchmark mode does; return workspaces that fit.

        The sizes stay in cuDNN's order, for it is not known which kernel is faster.
        """
        every = kernels.every()
        if not every:
            self._gpu.note(NOT_ASKED)
        room = self._room()
        sizes = [size for size in every or (kernels.nbytes, 0) if size <= room]
        most = max(sizes, default=0)
        while most and not self._fits(most):
            most //= 2
        self._gpu.empty_cache()
        return [size for size in sizes if size <= most]

    def _room(self) -> int:
        """Return the free bytes or the largest cached block, if that is larger.

        torch computes the same in cacheInfo.
        """
        with self._gpu.lock:
            blocks = self._gpu.allocator.layout().blocks
        cached = blocks.size[blocks.state == BlockState.INACTIVE]
        return max(self._gpu.free_bytes, int(cached.max(initial=0)))

    def _fits(self, size: int) -> bool:
        try:
            self._gpu.give(self._gpu.take(size))
        except torch.OutOfMemoryError:
            return False
        return True


def _in_order(kernels: Kernels) -> Iterator[int]:
    """Yield workspace sizes in the order in which torch tries them.

    All kernels are queried only after the first one did not fit.
    """
    yield kernels.nbytes
    every = kernels.every()
    yield from every[1:] if every else (0,)
