"""Call back when the user's code initializes CUDA.

All callbacks share one call in torch's queue. torch retains a queued call for the life of the
process. So that call holds no callback, and it is removed when no callback is waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.entry_points import entry

_waiting: dict[object, Callable[[], None]] = {}


def on_cuda_initialized(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a callback for the end of CUDA's initialization.

    It is called immediately if CUDA is initialized already.

    This initializes nothing, because nbmem must not create a context.

    Args:
        callback: Called once, in the thread that initializes; must not raise.

    Returns:
        A function that cancels it; after the callback it does nothing.
    """
    key = object()
    _waiting[key] = callback
    _leave_queue()
    torch: Any = loaded_torch()
    torch.cuda._lazy_call(_initialized)  # noqa: SLF001

    def cancel() -> None:
        _waiting.pop(key, None)
        if not _waiting:
            _leave_queue()

    return cancel


@entry("what waits for CUDA")
def _initialized() -> None:
    for key in tuple(_waiting):
        callback = _waiting.pop(key, None)
        if callback is not None:
            callback()


def _leave_queue() -> None:
    """Remove the call from torch's queue, unless torch is processing it.

    torch holds its lock meanwhile. The call then finds no waiting callback.
    """
    cuda: Any = getattr(loaded_torch(), "cuda", None)
    queue: Any = getattr(cuda, "_queued_calls", None)
    lock: Any = getattr(cuda, "_initialization_lock", None)
    if not queue or lock is None or not lock.acquire(blocking=False):
        return
    try:
        queue[:] = [call for call in queue if call[0] is not _initialized]
    finally:
        lock.release()
