"""Describe what a process finds on a card."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSize:
    """One card and the memory that a process takes there, in bytes.

    Attributes:
        key: nbmem's name of the card.
        total: Memory that CUDA reports.
        nvml_total: Memory that nvidia-smi reports, as a report shows it.
        context: Process memory of a bare context.
        cublas, cudnn, nccl: Process memory of one handle of each library.
        unowned: What the driver counts for no process, beside one process.
        cublas_workspace: What torch allocates as a workspace of cuBLAS.
        capability: Compute capability, which decides the kernels.
        bfloat16: Whether fused attention takes bfloat16 there.
    """

    key: str
    total: int
    nvml_total: int
    context: int
    cublas: int
    cudnn: int
    nccl: int
    unowned: int
    cublas_workspace: int
    capability: tuple[int, int]
    bfloat16: bool = True
