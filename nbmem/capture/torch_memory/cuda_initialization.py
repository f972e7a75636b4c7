"""Call back when the user's code initializes CUDA, by one call in torch's queue for whoever waits.

torch keeps a queued call for the life of the process. So the one that is queued holds nobody, and
it is taken out of the queue when nobody waits any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.entry_points import entry

if TYPE_CHECKING:
    from collections.abc import Callable

_waiting: dict[object, Callable[[], None]] = {}


def when_initialized(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back at the end of torch's initialization of CUDA, or at once where that is over.

    Nothing is initialized by it: nbmem must not be the one to make a context.

    Args:
        callback: Called once, in the thread that initializes; must not raise.

    Returns:
        What cancels it; after the call it does nothing.
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
    """Take the call out of torch's queue, unless torch is going through it just now.

    torch holds its lock meanwhile; what it then calls finds nobody who waits.
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
