"""JAX: its memory pool on a GPU.

By default 75% to 90% of the GPU are reserved at the first array.

`memory_stats()` counts bytes that arrays and programs use (`bytes_in_use`) and, since 2024, bytes
that the pool took from the driver (`pool_bytes`). For an older release the held bytes are the used
bytes. Its own `devices()` would start it on every card, so its started backends are read.
https://github.com/jax-ml/jax/blob/jax-v0.10.2/jaxlib/py_device.cc
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks.framework import Framework, FrameworkReading

_BACKENDS = "jax._src.xla_bridge"


def read(device: int) -> FrameworkReading | None:
    """Read JAX's pool on a GPU; None before it has used any GPU."""
    backends = getattr(sys.modules[_BACKENDS], "_backends", {})
    for client in tuple(backends.values()):
        for one in client.local_devices():
            if one.platform in {"gpu", "cuda"} and _ordinal(one) == device:
                stats = one.memory_stats() or {}
                used = stats.get("bytes_in_use")
                held = stats.get("pool_bytes", used)
                return None if used is None else FrameworkReading(held=held, used=used)
    return None


def _ordinal(device: Any) -> Any:
    """Return the CUDA ordinal of a JAX device.

    `id` counts the devices of all processes.
    """
    local = getattr(device, "local_hardware_id", None)
    return device.id if local is None else local


OWNER = Framework(name="jax", modules=("jax", _BACKENDS), read=read)
