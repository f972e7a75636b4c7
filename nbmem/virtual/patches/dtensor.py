"""DTensor's random operators, which torch wraps so that a compiler sees them.

A virtual card has no values, so each rank's part of the random stream does not matter.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_prims/rng_prims.py
"""

from __future__ import annotations

from typing import Any

from torch._prims import rng_prims

from nbmem.virtual.operators.dispatch import CardMode


def teach_random() -> None:
    """Say what the wrapper is on a card; it is asked for only while a card is active."""
    operator = getattr(rng_prims, "run_dtensor_rng_op", None)
    if operator is not None and CardMode not in operator.python_key_table:
        operator.py_impl(CardMode)(_run)


def _run(mode: CardMode, _start: int, _end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return op(*args, **kwargs)
