"""Other libraries of this process that take memory of the card: a file and a line for each.

A library is asked only if the user has imported it, in a thread of nbmem's own, for what it counts
itself: no list of its arrays is walked, so a question takes microseconds.
"""

from __future__ import annotations

from nbmem.capture.frameworks import cuda_pool, cupy, jax, numba, rmm, tensorflow
from nbmem.capture.frameworks.framework import Owner, OwnerReading

__all__ = ["OWNERS", "Owner", "OwnerReading"]

OWNERS: tuple[Owner, ...] = (
    cupy.OWNER,
    rmm.OWNER,
    jax.OWNER,
    tensorflow.OWNER,
    numba.OWNER,
    cuda_pool.OWNER,
)
