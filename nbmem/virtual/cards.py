"""The table of virtual cards: what each driver reports, with sources.

The table is cards.toml. `total_bytes` is what cudaMemGetInfo and `get_device_properties()` report;
NVML reports more, since it counts what the driver and ECC reserve for themselves.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbmem.core.units import KIB, MIB
from nbmem.virtual.arch import Arch, Multiprocessor, arch_of

STACK = 1 * KIB
"""Local memory of a context for each resident thread: cudaLimitStackSize by default. The source for
216 MiB on an A100 is arcs-skku/EMDC_llvm#13."""
CONTEXT_BASE, CONTEXT_PER_STACK = 24 * MIB, 1.87
"""A context is a little and nearly twice its stacks: within 11% of all figures that are published
for lazily loaded modules (`PUBLISHED`), over stacks of 40 to 282 MiB."""
H100_CONTEXT = 610 * MIB
"""Process memory that NVML reports for a bare context on an H100 (tests/recordings, `context`): 18%
above the rule. Hopper and the data-centre Blackwells are taken to grow from this figure."""
UNOWNED_STEP = 64 * KIB
"""Bytes that the driver counts for no process are multiples of this."""
CONTEXT_BAND = 0.12
"""How far a context that was never recorded may be from the rule, as a part of it."""
T4_CUBLAS, H100_CUBLAS = 26 * MIB, 66 * MIB
"""Growth of NVML's figure when a thread makes its first cuBLAS handle: 64 to 68 MiB in the
recordings, once in the forward thread and once in the engine's; reported for a T4. Other cards are
interpolated on the line through both, by their stacks."""
T4_CUDNN, H100_CUDNN = 4 * MIB, 10 * MIB
"""What NVML's figure grows by at the first cuDNN handle of a thread: 10 to 12 MiB (deeplabv3, unet, squeezenet)."""
H100_NCCL = 564 * MIB
"""What it grows by at NCCL's first communicator (ddp_resnet50_b32_sgdm, world size 1). With more
ranks that is more by the channels to each peer: 0.5 to 1.6 GiB are reported (NVIDIA/nccl#964, #1685)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One kind of card; sizes in bytes.

    Attributes:
        key: nbmem's name of it.
        name: The name that the driver reports.
        total_bytes: Memory that CUDA reports.
        nvml_total: Memory that NVML and nvidia-smi report.
        processors: Streaming multiprocessors.
        capability: Compute capability.
        l2_bytes: L2 cache.
        context_bytes: Process memory of a bare context.
        context_recorded: Whether it was read from such a card; else it is an estimate.
        cublas_bytes: Process memory of one cuBLAS handle, outside of torch's allocator.
        cudnn_bytes: Process memory of one cuDNN handle.
        nccl_bytes: Process memory of NCCL's communicator.
        unowned_bytes: Bytes that the driver counts for no process: once if the card is in use, and
            for each context; None where they were not measured.
        aliases: Other names, in lower case.
        source: The source of the totals; "estimate" includes the rule.
    """

    key: str
    name: str
    total_bytes: int
    nvml_total: int
    processors: int
    capability: tuple[int, int]
    l2_bytes: int
    context_bytes: int
    cublas_bytes: int
    cudnn_bytes: int
    nccl_bytes: int = H100_NCCL
    unowned_bytes: tuple[int, int] | None = None
    context_recorded: bool = False
    aliases: tuple[str, ...] = ()
    source: str = field(default="", repr=False)

    @property
    def context_band(self) -> tuple[int, int]:
        """Least and most bytes of a bare context; equal if it was recorded."""
        if self.context_recorded:
            return self.context_bytes, self.context_bytes
        off = int(self.context_bytes * CONTEXT_BAND)
        return self.context_bytes - off, self.context_bytes + off

    def unowned_with(self, contexts: int) -> int:
        """Return the bytes that belong to no process, for some contexts.

        0 where it is not known, or without a context.
        """
        if self.unowned_bytes is None or not contexts:
            return 0
        once, each = self.unowned_bytes
        return (once + contexts * each) // UNOWNED_STEP * UNOWNED_STEP

    @property
    def driver_bytes(self) -> int:
        """Bytes reserved for driver and ECC; NVML counts them, CUDA does not."""
        return self.nvml_total - self.total_bytes

    @property
    def arch(self) -> Arch:
        """Figures that its compute capability decides."""
        return arch_of(self.capability)

    @property
    def multiprocessor(self) -> Multiprocessor:
        """Limits of one of its multiprocessors."""
        return self.arch.multiprocessor


def _card(row: dict[str, Any]) -> Card:
    major, minor = row["capability"]
    arch = arch_of((major, minor))
    processors = int(row["processors"])
    stacks = processors * arch.multiprocessor.threads * STACK

    def measured(key: str, otherwise: int) -> int:
        return row[key] * MIB if key in row else otherwise

    once, each = row.get("unowned", (0, 0))
    return Card(
        key=row["key"],
        name=row["name"],
        total_bytes=row["total"] * MIB,
        nvml_total=row["nvml_total"] * MIB,
        processors=processors,
        capability=(major, minor),
        l2_bytes=int(row["l2"] * MIB),
        context_bytes=measured("context", _context(stacks, data_centre=arch.data_centre)),
        context_recorded="context" in row,
        cublas_bytes=measured("cublas", _between(T4_CUBLAS, H100_CUBLAS, stacks)),
        cudnn_bytes=measured("cudnn", _between(T4_CUDNN, H100_CUDNN, stacks)),
        nccl_bytes=measured("nccl", H100_NCCL),
        unowned_bytes=(int(once * MIB), int(each * MIB)) if "unowned" in row else None,
        aliases=tuple(row.get("aliases", ())),
        source=row["source"],
    )


_T4_STACKS, _H100_STACKS = 40 * 1024 * STACK, 132 * 2048 * STACK


def _context(stacks: int, *, data_centre: bool) -> int:
    """Return the bytes of a bare context, from those of its stacks.

    The slope of data-centre cards is the recorded H100's; of others it is an estimate.
    """
    slope = (H100_CONTEXT - CONTEXT_BASE) / _H100_STACKS if data_centre else CONTEXT_PER_STACK
    return int(CONTEXT_BASE + slope * stacks) // MIB * MIB


def _between(on_t4: int, on_h100: int, stacks: int) -> int:
    """Interpolate a figure that is known for a T4 and an H100, by stacks."""
    part = (stacks - _T4_STACKS) / (_H100_STACKS - _T4_STACKS)
    return int(on_t4 + (on_h100 - on_t4) * part) // MIB * MIB


_TABLE = Path(__file__).with_suffix(".toml")
_ROWS = tomllib.loads(_TABLE.read_text("utf-8"))
CARDS = tuple(_card(row) for row in _ROWS["card"])
PUBLISHED: tuple[dict[str, Any], ...] = tuple(_ROWS["published"])
"""Contexts that others measured: processors, threads of each, MiB, and the source."""
