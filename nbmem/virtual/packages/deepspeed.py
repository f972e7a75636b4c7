"""DeepSpeed: its checks that ranks agree, with one rank present.

ZeRO-3 compares lists of integers with rank 0's, in the order of its modules and of each bucket:
https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/zero/utils.py#L81
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps

from nbmem.virtual import current_machine
from nbmem.virtual.kernel_rules import KernelRules


def as_here(ask: Callable[[list[int]], list[int]]) -> Callable[[list[int]], list[int]]:
    """Wrap `get_lst_from_rank0` to return this rank's own list.

    The call still runs, so its memory is counted.
    """

    @wraps(ask)
    def answered(ints: list[int]) -> list[int]:
        told = ask(ints)
        return told if current_machine.machine() is None else list(ints)

    return answered


def accept_on_card(compare: Callable[[list[int]], None]) -> Callable[[list[int]], None]:
    """Wrap `assert_lst_len_same_as_other_ranks` to pass on a card."""

    @wraps(compare)
    def compared(ints: list[int]) -> None:
        with suppress(*() if current_machine.machine() is None else (RuntimeError,)):
            compare(ints)

    return compared


RULES = KernelRules(
    replaced={
        "deepspeed.runtime.zero.utils": {
            "get_lst_from_rank0": as_here,
            "assert_lst_len_same_as_other_ranks": accept_on_card,
        }
    }
)
