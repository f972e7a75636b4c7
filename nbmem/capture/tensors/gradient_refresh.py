"""Re-read the gradients of known parameters, once per backward.

The fast path is for gradients of which only the address is new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal

if TYPE_CHECKING:
    from nbmem.capture.tensors.tensors import ObservedStorage

    Look = Callable[[Any, ObservedStorage], ObservedStorage | None]


def gradient_reader() -> Look | None:
    """Return a function that re-reads a known parameter's gradient.

    Disable functions of subclasses (`__torch_function__`) around its calls. The parameters must be
    this thread's own.

    Returns:
        A function of a parameter and its last gradient. It returns that gradient with its current
        address, or None if a full read is needed (another device or size, a subclass, sparse,
        none). Returns None instead of a function before torch is imported, and while the active
        storage registry is of another device than the host.
    """
    torch: Any = loaded_torch()
    registry = active_registry()
    if torch is None or (registry is not None and registry.kind != "cpu"):
        return None
    plain, storage_of = torch.Tensor, torch.Tensor.untyped_storage
    data_ptr = plain.data_ptr
    is_leaf, gradient_of = plain.is_leaf.__get__, plain.grad.__get__

    def read(parameter: Any, last: ObservedStorage) -> ObservedStorage | None:
        try:
            gradient: Any = gradient_of(parameter) if is_leaf(parameter) else None
            if type(gradient) is not plain or gradient.get_device() != last.device:
                return None
            if registry is None and data_ptr(gradient) == last.addr:
                return last
            storage = storage_of(gradient)
            if storage.nbytes() != last.size:
                return None
            addr: int = storage.data_ptr()
            if registry is not None:
                if gradient.grad_fn is not None:  # its node may show since when it exists
                    return None
                registry.register(0, storage, addr, last.size, gradient)
        except Exception as err:  # noqa: BLE001 - sparse, or a wrapper without attributes
            reraise_if_from_signal(err)
            return None
        return last if addr == last.addr else last._replace(addr=addr)

    return read
