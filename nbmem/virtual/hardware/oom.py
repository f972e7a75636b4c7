"""The out-of-memory error, with torch's wording and this card's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from nbmem.allocator.heap import AllocatorOOM
    from nbmem.virtual.hardware.gpu import VirtualGPU

_DOCS = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"

EXBIBYTE = 1 << 60
TOO_MUCH = "CUDA out of memory. Tried to allocate more than 1EB memory."
"""torch's error, without a request to the allocator, from an exbibyte on."""


def torch_size(size: int) -> str:
    """Format bytes as torch's error messages do.

    https://github.com/pytorch/pytorch/blob/v2.11.0/c10/core/CachingDeviceAllocator.h (fmt)
    """
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


def oom_message(gpu: VirtualGPU, error: AllocatorOOM) -> str:
    """Build torch's out-of-memory message with this card's figures.

    Compare tests/recordings, snapshot `oom`.
    """
    allocator = gpu.allocator
    allowed = "" if error.limit is None else f"{torch_size(error.limit)} allowed; "
    others = "".join(
        f"Process {pid} has {torch_size(size)} memory in use. "
        for pid, size in gpu.other_processes.items()
    )
    private = allocator_private_bytes(gpu)
    pools = (
        f"with {torch_size(private)} allocated in private pools (e.g., CUDA Graphs), "
        if private
        else ""
    )
    cached = allocator.reserved - allocator.allocated
    return (
        f"CUDA out of memory. Tried to allocate {torch_size(error.segment)}. "
        f"GPU {gpu.index} has a total capacity of {torch_size(gpu.card.total_bytes)} "
        f"of which {torch_size(max(0, gpu.free_bytes))} is free. {others}"
        f"Including non-PyTorch memory, this process has {torch_size(gpu.process_bytes)} memory in "
        f"use. {allowed}Of the allocated memory {torch_size(allocator.allocated)} is allocated by "
        f"PyTorch, {pools}and {torch_size(cached)} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        f"documentation for Memory Management  ({_DOCS})"
    )


def allocator_private_bytes(gpu: VirtualGPU) -> int:
    """Count the bytes of blocks in use in private pools."""
    layout = gpu.allocator.layout()
    private = layout.segments.pool != 0
    if not private.any():
        return 0
    total = 0
    for addr, size in zip(
        layout.segments.addr[private], layout.segments.size[private], strict=True
    ):
        inside = (layout.blocks.addr >= addr) & (layout.blocks.addr < addr + size)
        total += int(layout.blocks.size[inside & (layout.blocks.state != 0)].sum())
    return total
