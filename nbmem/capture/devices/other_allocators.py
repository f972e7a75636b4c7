"""CUDA devices where torch uses another allocator than its native one.

torch has no history of its memory.

`backend:cudaMallocAsync` allocates from CUDA's default pool, and torch's counters are that pool's
figures. A `CUDAPluggableAllocator` counts nothing; if it is RMM's, RMM's own figures replace the
counters. The whole card is read as for any allocator (capture/record/card_sampler.py).
https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDAMallocAsyncAllocator.cpp
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/cuda/CUDAPluggableAllocator.cpp
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbmem.capture import torch_cuda
from nbmem.capture.devices import DeviceReading
from nbmem.capture.frameworks import rmm

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo


class OtherAllocator:
    """A CUDA GPU as a `Device`, without an allocator history.

    Its live tensors are the observed ones; further bytes are only counted.
    """

    kind = "cuda"

    @property
    def missing(self) -> str:
        """The limits of a recording with this allocator, and its backend."""
        return (
            "torch takes its memory from another allocator here "
            f"({torch_cuda.allocator_backend()}) and keeps no "
            "history of it: what lived was looked at where phases begin and end, and peaks are "
            "those of these moments. What the allocator counts beyond the tensors that were seen "
            "is unknown or cache; "
            f"{_WHAT_IS_COUNTED[torch_cuda.allocator_backend() == 'pluggable']}."
        )

    def in_use(self, _torch: Any) -> bool:
        """Return True if CUDA is initialized with another allocator."""
        return (
            torch_cuda.initialized_torch() is not None
            and torch_cuda.allocator_backend() != "native"
        )

    def count(self, _torch: Any) -> int:
        """Return the number of GPUs that torch uses or could use."""
        return torch_cuda.device_count()

    def read(self, _torch: Any, index: int, *, whole: bool) -> DeviceReading:  # noqa: ARG002 - all quick
        """Read the allocator's counters, as far as any are kept."""
        counters = torch_cuda.read_counters(index)
        if counters is not None:
            return DeviceReading(counters.allocated, counters.reserved)
        return DeviceReading(*(rmm.torch_bytes(index) or ()))

    def info(self, _torch: Any, index: int) -> DeviceInfo:
        """Return the name, bytes and allocator backend of a GPU."""
        return replace(
            torch_cuda.device_info(index, None, virtual=False),
            allocator=torch_cuda.allocator_backend(),
        )


_WHAT_IS_COUNTED = (
    "a block that another stream still uses counts as in use",
    "one that counts nothing has none of either",
)
