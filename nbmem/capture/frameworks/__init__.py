"""Other frameworks of this process that allocate GPU memory.

Each has a file here, and an entry in `OWNERS`. A framework is queried only if the user has imported
it. The query runs in a thread of nbmem's own and reads the framework's own counters. No list of its
arrays is walked, so a query takes microseconds.
"""

from __future__ import annotations

from nbmem.capture.frameworks import cuda_pool, cupy, jax, numba, rmm, tensorflow
from nbmem.capture.frameworks.framework import Framework, FrameworkReading

__all__ = ["OWNERS", "Framework", "FrameworkReading"]

OWNERS: tuple[Framework, ...] = (
    cupy.OWNER,
    rmm.OWNER,
    jax.OWNER,
    tensorflow.OWNER,
    numba.OWNER,
    cuda_pool.OWNER,
)
