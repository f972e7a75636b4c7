"""Recorded attributes and figures of real packages, by version.

CuPy's, JAX's GPU's and CUDA's figures need a card: of those the names come from the packages named
here (14.2.0; jaxlib 0.10.2, py_device.cc; cuda-bindings 12.9.10), the bytes from the tests. RMM's
are its own, counted over a callback resource; TensorFlow's those of a CPU.
"""

from typing import NamedTuple

JAX_0_10_2_GPU = {
    "num_allocs": 2,
    "bytes_in_use": 400 << 20,
    "peak_bytes_in_use": 800 << 20,
    "largest_alloc_size": 400 << 20,
    "bytes_limit": 60 << 30,
    "bytes_reserved": 0,
    "peak_bytes_reserved": 0,
    "largest_free_block_bytes": 59 << 30,
    "pool_bytes": 60 << 30,
    "peak_pool_bytes": 60 << 30,
}
JAX_0_10_2_CPU = None
TENSORFLOW_2_21_0_CPU = {"current": 0, "peak": 0}


class Statistics(NamedTuple):
    """rmm.statistics.Statistics of rmm 26.10.0."""

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int


RMM_26_10_0 = Statistics(1048576, 1, 1048576, 1, 1048576, 1)
RMM_23_12_0 = {
    "current_bytes": 1048576,
    "current_count": 1,
    "peak_bytes": 1048576,
    "peak_count": 1,
    "total_bytes": 1048576,
    "total_count": 1,
}
CUPY_14_2_0_POOL = ("free_all_blocks", "free_bytes", "total_bytes", "used_bytes", "get_limit")
"""Methods of both its pools."""
CUDA_12_9_10_ATTRIBUTES = {
    "cudaMemPoolAttrReservedMemCurrent": 5,
    "cudaMemPoolAttrUsedMemCurrent": 7,
}
