"""Read GPUs that use the host's memory, for which NVML has no bytes.

For these, NVML returned, as their users reported:

- GB10 (DGX Spark, driver 580): "Not Supported" for both versions of the memory call, processes
  with their bytes: https://github.com/XuehaiPan/nvitop/pull/208,
  https://github.com/Syllo/nvtop/pull/511,
  https://docs.nvidia.com/dgx/dgx-spark/known-issues.html#nvidia-smi-reports-memory-usage-not-supported
- Jetson Thor: the name "Thor", memory "Not Supported", processes with their bytes:
  https://github.com/nvidia-cosmos/cosmos-reason1/issues/61,
  https://github.com/rbonghi/jetson_stats/pull/849
- Jetson Orin (JetPack 6): the name "Orin (nvgpu)", and nothing else:
  https://github.com/ultralytics/ultralytics/pull/20680
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from nbmem.capture import torch_cuda

_NAMES = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|nvgpu)\b")
"""Names of such cards in NVML and CUDA; gpustat and all-smi use them as well:
https://github.com/wookayin/gpustat/pull/179, https://github.com/lablup/all-smi/pull/146."""


class MemoryReading(NamedTuple):
    """A GPU's memory, from another source than NVML.

    Attributes:
        total: The whole card, or the machine that shares its memory with it.
        free: Unused bytes, including page cache that the kernel would release.
        shared: Whether the memory is the host's.
    """

    total: int
    free: int
    shared: bool


def is_shared(name: str, ordinals: Iterable[int]) -> bool:
    """Return whether a GPU uses the host's memory.

    No CUDA context is created.

    Args:
        name: The driver's name.
        ordinals: The CUDA ordinals that it may have.
    """
    return _NAMES.search(name) is not None or any(map(torch_cuda.is_integrated, ordinals))


def memory_of_host() -> MemoryReading:
    """Read the machine's total and available memory.

    These are `MemTotal` and `MemAvailable` of /proc/meminfo.

    A container's limit does not apply to a card: the driver allocates its pages outside it.
    """
    import psutil

    machine = psutil.virtual_memory()
    return MemoryReading(
        int(machine.total), min(int(machine.available), int(machine.total)), shared=True
    )


def memory_without_nvml(ordinal: int) -> MemoryReading | None:
    """Read a GPU's memory by cudaMemGetInfo.

    None before torch holds memory on it.

    If the host's memory is shared, cudaMemGetInfo counts page cache as used, which the kernel
    releases on demand: https://nvidia.custhelp.com/app/answers/detail/a_id/5728. Then the larger of
    the two figures is free.
    """
    by_cuda = torch_cuda.card_bytes(ordinal)
    if by_cuda is None:
        return None
    free, total = by_cuda
    if not torch_cuda.is_integrated(ordinal):
        return MemoryReading(total, free, shared=False)
    return MemoryReading(total, min(total, max(free, memory_of_host().free)), shared=True)
