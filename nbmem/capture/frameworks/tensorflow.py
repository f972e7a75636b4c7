"""TensorFlow: the bytes of a GPU that its tensors use.

It does not report the bytes of its arena (by default nearly the whole card, from the first
operation on). So its held bytes are its used bytes, and the rest of the arena counts as context.
https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/framework/config.py
"""

from __future__ import annotations

import sys
from typing import Any

from nbmem.capture.frameworks.framework import Framework, FrameworkReading

_CONTEXT = "tensorflow.python.eager.context"


def read(device: int) -> FrameworkReading | None:
    """Read what TensorFlow uses of a GPU; None before it was started.

    nbmem must not start it.
    """
    context = getattr(sys.modules[_CONTEXT], "_context", None)
    if context is None or not getattr(context, "_initialized", False):
        return None
    name = f"GPU:{device}"
    if not any(one.name.endswith(name) for one in context.list_logical_devices("GPU")):
        return None
    tensorflow: Any = sys.modules["tensorflow"]
    used = tensorflow.config.experimental.get_memory_info(name)["current"]
    return FrameworkReading(held=used, used=used)


OWNER = Framework(name="tensorflow", modules=("tensorflow", _CONTEXT), read=read)
