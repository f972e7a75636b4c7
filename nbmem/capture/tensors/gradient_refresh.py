"""Gradients, which are looked at once a backward: the quick way where only the address is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.capture.tensors.active_registry import followed
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import let_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.capture.tensors.tensors import Seen

    Look = Callable[[Any, Seen], Seen | None]


def look_again() -> Look | None:
    """How to look at the gradient of a parameter that had one before.

    Functions of subclasses must be switched off around the calls, and the parameters be this
    thread's own.

    Returns:
        A function of a parameter and its last gradient: that, where it lies now, or None if it must
        be looked at as if for the first time (another card or size, a subclass, sparse, none).
        None before torch is there, and where a roll of another device than the host is kept.
    """
    torch: Any = loaded_torch()
    roll = followed()
    if torch is None or (roll is not None and roll.kind != "cpu"):
        return None
    plain, storage_of = torch.Tensor, torch.Tensor.untyped_storage
    data_ptr = plain.data_ptr
    is_leaf, gradient_of = plain.is_leaf.__get__, plain.grad.__get__

    def look(parameter: Any, last: Seen) -> Seen | None:
        try:
            gradient: Any = gradient_of(parameter) if is_leaf(parameter) else None
            if type(gradient) is not plain or gradient.get_device() != last.device:
                return None
            if roll is None and data_ptr(gradient) == last.addr:
                return last
            storage = storage_of(gradient)
            if storage.nbytes() != last.size:
                return None
            addr: int = storage.data_ptr()
            if roll is not None:
                if gradient.grad_fn is not None:  # which may tell since when it is there
                    return None
                roll.meet(0, storage, addr, last.size, gradient)
        except Exception as err:  # noqa: BLE001 - sparse, or a wrapper that answers nothing
            let_pass(err)
            return None
        return last if addr == last.addr else last._replace(addr=addr)

    return look
