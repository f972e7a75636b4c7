"""Random operators that torch wraps so that a compiler sees them.

DTensor and recomputation use them. A virtual card has no values, so which part of the random stream
is meant does not matter.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_prims/rng_prims.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims import rng_prims

from nbmem.virtual.devices import CPU
from nbmem.virtual.dispatch.card_mode import CardMode


def register_random_wrappers() -> None:
    """Register the wrappers' kernels for the card's mode.

    They are called only while a card is active.
    """
    for name, kernel in (
        ("run_dtensor_rng_op", _sharded),
        ("graphsafe_run_with_rng_state", _with_generator),
        ("run_with_rng_state", _with_state),
        ("run_and_save_rng_state", _saving_state),
    ):
        operator = getattr(rng_prims, name, None)
        if operator is not None and CardMode not in operator.python_key_table:
            operator.py_impl(CardMode)(kernel)


def _sharded(mode: CardMode, _start: int, _end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return op(*args, **kwargs)


def _with_generator(
    mode: CardMode, op: Any, *args: Any, rng_state: Any = None, **kwargs: Any
) -> Any:
    del rng_state
    with mode:
        return op(*args, **kwargs)


def _with_state(mode: CardMode, _state: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return op(*args, **kwargs)


def _saving_state(mode: CardMode, op: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return torch.zeros(16, dtype=torch.uint8, device=CPU), op(*args, **kwargs)
