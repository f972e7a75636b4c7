"""What to type so that another framework leaves memory of the card to torch."""

from __future__ import annotations

GIVES_BACK = {
    "cupy": "import cupy\n\ncupy.get_default_memory_pool().free_all_blocks()   # what is not used",
}
"""What gives an owner's unused bytes back at once, for those that have such a call."""
NO_PREALLOCATION = (
    'import os\n\nos.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"   # before jax is imported'
)
GROWTH = (
    "import tensorflow as tf\n\n"
    'for gpu in tf.config.list_physical_devices("GPU"):   # before its first operation\n'
    "    tf.config.experimental.set_memory_growth(gpu, True)"
)
