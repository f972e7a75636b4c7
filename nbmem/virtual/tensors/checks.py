"""What a program does with a value that it asks for.

`assert (target < classes).all()` cannot be answered without values, and False would end a program
that runs on a card: a condition whose failure is raised is healthy as the program goes on.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

FAR = 60
"""Instructions within which a message is made and raised."""
_CHOICES = ("max", "min")


@lru_cache(maxsize=256)
def healthy_answer(code: CodeType, place: int) -> bool | None:
    """What the condition at an instruction is where the program goes on; None: it raises nothing.

    Args:
        code: The function's code.
        place: Where it asks, as `frame.f_lasti` has it: at the jump, or at a call before it.
    """
    steps = list(dis.get_instructions(code))
    at = sum(step.offset <= place for step in steps) - 1  # a call's place may be its cache's
    while 0 <= at < len(steps) and steps[at].opname.startswith(("CALL", "TO_BOOL")):
        at += 1
    if not 0 <= at < len(steps) or "POP_JUMP" not in steps[at].opname:
        return None
    jump = steps[at]
    if not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = jump.opname.endswith("IF_TRUE")
    target = next((n for n, step in enumerate(steps) if step.offset == jump.argval), None)
    if _raises(steps, at + 1):
        return jumps_if
    if target is not None and target > at and _raises(steps, target):
        return not jumps_if
    return None


def chooses(code: CodeType, instruction: int) -> bool:
    """Whether a place only takes the larger or smaller of two: no loop waits for that answer."""
    chosen = False
    for at in dis.get_instructions(code):
        if at.offset >= instruction:
            break
        if at.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            chosen = chosen or at.argval in _CHOICES
        elif at.opname.startswith("CALL"):
            chosen = False
    return chosen and dis.opname[code.co_code[instruction]].startswith("CALL")


def _raises(steps: list[dis.Instruction], start: int) -> bool:
    """Whether what begins there raises before it goes anywhere else."""
    for step in steps[start : start + FAR]:
        if step.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in step.opname or step.opname.startswith(("RETURN", "FOR_ITER", "STORE")):
            return False
    return False
