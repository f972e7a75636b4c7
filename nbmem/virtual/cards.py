"""The cards that can be imitated: what their driver reports, and where each figure is from.

The table is cards.toml. `total_bytes` is what cudaMemGetInfo and `get_device_properties()` answer;
NVML reports more, since it counts what the driver and ECC keep for themselves.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbmem.core.units import KIB, MIB

H100_CONTEXT = 610 * MIB
"""Process memory that NVML reports for a bare context on an H100 (tests/recordings, `context`)."""
H100_CUBLAS = 66 * MIB
"""What NVML's figure grows by when a thread makes its first cuBLAS handle: 64 to 68 MiB in the
recordings, once in the forward thread and once in the engine's."""
H100_CUDNN = 10 * MIB
"""The same for the first cuDNN handle of a thread: 10 to 12 MiB (deeplabv3, unet, squeezenet)."""
H100_NCCL = 564 * MIB
"""The same for NCCL's first communicator (ddp_resnet50_b32_sgdm, world size 1). With more ranks it
grows by the channels to each peer: 0.5 to 1.6 GiB are reported (NVIDIA/nccl#964, #1685)."""


class Multiprocessor(NamedTuple):
    """What CUDA's table of technical specifications says of a compute capability.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications

    Attributes:
        threads: Resident threads.
        blocks: Resident blocks.
        shared_bytes: Shared memory that one block may ask for.
    """

    threads: int
    blocks: int
    shared_bytes: int


MULTIPROCESSORS = {
    (6, 0): Multiprocessor(2048, 32, 48 * KIB),
    (7, 0): Multiprocessor(2048, 32, 96 * KIB),
    (7, 5): Multiprocessor(1024, 16, 64 * KIB),
    (8, 0): Multiprocessor(2048, 32, 163 * KIB),
    (8, 6): Multiprocessor(1536, 16, 99 * KIB),
    (8, 9): Multiprocessor(1536, 24, 99 * KIB),
    (9, 0): Multiprocessor(2048, 32, 227 * KIB),
    (10, 0): Multiprocessor(2048, 32, 227 * KIB),
    (12, 0): Multiprocessor(1536, 24, 99 * KIB),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of card; sizes in bytes.

    Attributes:
        key: How nbmem names it.
        name: As the driver reports it.
        total_bytes: Memory that CUDA reports.
        nvml_total: Memory that NVML and nvidia-smi report.
        processors: Streaming multiprocessors.
        capability: Compute capability.
        l2_bytes: L2 cache.
        context_bytes: Process memory of a bare context; an estimate but for the H100's chip.
        cublas_bytes: Process memory of one cuBLAS handle, outside of torch's allocator.
        cudnn_bytes: The same for cuDNN.
        nccl_bytes: The same for NCCL's communicator.
        aliases: Other names, in lower case.
        source: Where the totals are from; "estimate" says by which rule.
    """

    key: str
    name: str
    total_bytes: int
    nvml_total: int
    processors: int
    capability: tuple[int, int]
    l2_bytes: int
    context_bytes: int
    cublas_bytes: int = H100_CUBLAS
    cudnn_bytes: int = H100_CUDNN
    nccl_bytes: int = H100_NCCL
    aliases: tuple[str, ...] = ()
    source: str = field(default="", repr=False)

    @property
    def driver_bytes(self) -> int:
        """What the driver and ECC keep for themselves; NVML counts it, CUDA does not."""
        return self.nvml_total - self.total_bytes

    @property
    def multiprocessor(self) -> Multiprocessor:
        """What one of its multiprocessors holds."""
        return MULTIPROCESSORS[self.capability]


def _card(row: dict[str, Any]) -> Card:
    major, minor = row["capability"]
    processors = int(row["processors"])
    return Card(
        key=row["key"],
        name=row["name"],
        total_bytes=row["total"] * MIB,
        nvml_total=row["nvml_total"] * MIB,
        processors=processors,
        capability=(major, minor),
        l2_bytes=int(row["l2"] * MIB),
        context_bytes=_context(processors, MULTIPROCESSORS[major, minor].threads),
        aliases=tuple(row.get("aliases", ())),
        source=row["source"],
    )


def _context(processors: int, threads: int) -> int:
    """Bytes of a bare context: the H100's as recorded, for others an estimate.

    The driver keeps local memory and stacks for every resident thread, so that part of the context
    grows with them; the rest is code. Half of the H100's context is taken to grow.
    """
    share = processors * threads / (132 * 2048)
    return int(H100_CONTEXT * (0.5 + 0.5 * share)) // (2 * MIB) * (2 * MIB)


_TABLE = Path(__file__).with_suffix(".toml")
CARDS = tuple(_card(row) for row in tomllib.loads(_TABLE.read_text("utf-8"))["card"])
