"""Find out from CPython's bytecode what a program does at an instruction.

All that nbmem knows about instructions is in this module, because Python changes them with each
release. A reader takes a code object and an instruction offset, such as `frame.f_lasti`. Each
reader is tested on small programs at import (self_test.py). A reader that is wrong is disabled
alone.

Python has an instruction that looks up a method to call it, but not every call is compiled to it.
Where a module imports a name (`import torch.optim as optim`), lookups in that name at module level
are compiled as a module's functions. This also applies once the name refers to an optimizer.
https://github.com/python/cpython/blob/v3.11.9/Python/compile.c#L4813
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType

from nbmem.core.runtime.self_test import self_tested


def _references_of_a_local() -> int:
    held = object()
    return sys.getrefcount(held)


OF_A_LOCAL = _references_of_a_local()
"""References to the value of one local variable, as `sys.getrefcount` returns. This is 2, or 1
since Python 3.14, which passes a local to a call without counting it."""


def _numbers(*names: str) -> frozenset[int]:
    """Return the opcodes with these names that exist in this Python."""
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


def _in_place() -> frozenset[int]:
    """Return the arguments of BINARY_OP that mean `a -= b` and the like.

    They are read from code that this Python compiles.
    """
    signs = ("+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>")
    code = compile("\n".join(f"a {sign}= b" for sign in signs), "<nbmem>", "exec")
    return frozenset(step.arg or 0 for step in dis.get_instructions(code) if step.opcode in _BINARY)


_IN_ONE = sys.version_info >= (3, 12)
"""Since 3.12 one instruction looks up attributes and methods; its lowest bit distinguishes them."""
_LOOK_UPS = _numbers("LOAD_ATTR", "LOAD_SUPER_ATTR") if _IN_ONE else _numbers("LOAD_METHOD")
_ATTRIBUTE = _numbers("LOAD_ATTR")
_METHODS = _LOOK_UPS | _ATTRIBUTE
_CALLS = _numbers("PRECALL") or _numbers("CALL", "CALL_KW")
_WITH_NAMES = _numbers("CALL_KW")
"""Calls in which the tuple of the arguments' names is the last value on the stack."""
_ENDS = frozenset(
    number
    for name, number in dis.opmap.items()
    if number in {*dis.hasjrel, *dis.hasjabs} or name.startswith(("RETURN_", "RAISE_", "RERAISE"))
)
_NOTHING = _numbers("CACHE", "EXTENDED_ARG")
_EXTENDED = _numbers("EXTENDED_ARG")
_ABOVE = _numbers("PUSH_NULL") if sys.version_info >= (3, 13) else frozenset()
"""Since 3.13 a call has this value above the callable; before, below it."""
_BINARY = _numbers("BINARY_OP")
_IN_PLACE = _in_place()
_STORES = {1: _numbers("STORE_SUBSCR"), 2: _numbers("STORE_SLICE")}
"""Stores by the number of values above the target on the stack."""
_COPY = _numbers("COPY")
_NO_WRITES = frozenset(("requires_grad_", "detach_", "share_memory_", "rename_"))
_CHOICES = ("max", "min")
_AHEAD = 200
"""Limit of instructions that are read until a call."""
_FAR = 60
"""Instructions within which a message is built and raised."""


def _stores(instruction: int, argument: int, above: int) -> bool | None:
    """Return whether an instruction changes the value at a stack depth.

    The depth is the number of values above it. The result is None if the instruction does not
    decide this.
    """
    if instruction in _COPY and argument > above:  # for `x[i] -= step`: x first, then i
        return argument == above + 1 > 1
    if above == 1 and instruction in _BINARY:
        return argument in _IN_PLACE
    return True if instruction in _STORES.get(above, ()) else None


def _followed(code: CodeType, place: int) -> Iterator[tuple[int, int, int]]:
    """Yield the instructions after a lookup while its result is on the stack.

    Each comes with its argument and the number of values above the result. Only instructions that
    run in sequence are followed, up to the first jump, return or raise.
    """
    above = 0
    for index, (instruction, argument) in enumerate(_instructions(code, place)):
        if index == 0 and instruction in _ABOVE:
            continue
        yield instruction, argument, above
        if instruction in _ENDS:
            return
        given = argument if instruction >= dis.HAVE_ARGUMENT else None
        above += dis.stack_effect(instruction, given)
        if above < 0:  # another instruction has consumed it
            return


def _instructions(code: CodeType, place: int) -> Iterator[tuple[int, int]]:
    """Yield the opcodes and arguments after an instruction.

    CACHE and EXTENDED_ARG are left out; the argument includes what EXTENDED_ARG adds.
    """
    raw, more = code.co_code, 0
    for index in range(place + 2, min(len(raw), place + 2 * _AHEAD), 2):
        instruction, argument = raw[index], raw[index + 1] | more
        more = argument << 8 if instruction in _EXTENDED else 0
        if instruction not in _NOTHING:
            yield instruction, argument


@self_tested(
    "recording",
    "tell when zero_grad() runs and what collectives gather",
    False,  # noqa: FBT003 - an answer
    {
        "probe.data()": True,
        "probe.data(x, y=x)": True,
        "import sys as other; other = probe; other.data(x)": True,
        "import sys as other; other = probe; other.data(x, y=x)": True,
        "class Child(type(probe)):\n def run(self): super().data(x)\nChild().run()": True,
        "y = probe.data": False,
        "y = probe.data; y()": False,
        "x(probe.data)": False,
        "[probe.data, x(1)]": False,
    },
)
def calls_at_once(code: CodeType, place: int) -> bool:
    """Return whether the attribute looked up there is called immediately.

    Other code stores the attribute, as `step = model.zero_grad` does, beyond the recording's end.
    """
    raw = code.co_code
    if raw[place] in _LOOK_UPS and (not _IN_ONE or bool(raw[place + 1] & 1)):
        return True
    return raw[place] in _ATTRIBUTE and any(
        instruction in _CALLS and above == argument + (instruction in _WITH_NAMES)
        for instruction, argument, above in _followed(code, place)
    )


@self_tested(
    "recording",
    "see which weights are changed through `.data`",
    False,  # noqa: FBT003 - an answer
    {
        "probe.data.add_(x)": True,
        "probe.data -= x": True,
        "probe.data[0] = x": True,
        "probe.data[0] -= x": True,
        "probe.data[1:x] = x": True,
        "probe.data.clone().add_(x)": False,
        "y = probe.data - x": False,
        "y = probe.data[0]": False,
        "y = x[probe.data]": False,
        "x[probe.data] = 1": False,
        "x.add_(probe.data)": False,
        "with probe.data: raise x": False,
    },
)
def writes_at_once(code: CodeType, place: int) -> bool:
    """Return whether the tensor looked up there is modified immediately.

    It is modified by a method whose name ends with an underscore, by `-=` and the like, or by
    index.
    """
    for instruction, argument, above in _followed(code, place):
        if above == 0 and instruction in _METHODS:
            name = code.co_names[argument >> 1 if _IN_ONE else argument]
            return name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES
        if (writes := _stores(instruction, argument, above)) is not None:
            return writes
    return False


@self_tested("recording", "tell which other threads sleep", None, {"probe.data(x)": (2, 2, 1, 11)})
def position(code: CodeType, place: int) -> tuple[int, int, int, int] | None:
    """Return the first and last line and column executed there, or None.

    The order is first line, last line, first column, last column. None means that they are
    unknown.
    """
    line, last, begin, end = next(islice(code.co_positions(), place // 2, None), (None,) * 4)
    if line is None or last is None or begin is None or end is None:
        return None
    return line, last, begin, end


def _raises(steps: list[dis.Instruction], start: int) -> bool:
    """Return whether the code from there on raises before it branches."""
    for step in steps[start : start + _FAR]:
        if step.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in step.opname or step.opname.startswith(("RETURN", "FOR_ITER", "STORE")):
            return False
    return False


@lru_cache(maxsize=256)
@self_tested(
    "virtual card",
    "tell how a program goes on whose own check asks for an unknown value",
    None,
    {
        "assert probe": True,
        "assert not probe, x": False,
        "if not probe:\n raise ValueError('{}'.format(x))": True,
        "if probe:\n raise x": False,
        "assert bool(probe)": True,
        "if probe: x()": None,
        "while probe: x()": None,
        "bool(probe)": None,
    },
)
def healthy_answer(code: CodeType, place: int) -> bool | None:
    """Return the condition's value for which the program does not raise.

    The result is None where neither branch raises.

    The place is at the jump, or at a call before it.
    """
    steps = list(dis.get_instructions(code))
    at = sum(step.offset <= place for step in steps) - 1  # an offset of a call may be in its cache
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


@self_tested(
    "virtual card",
    "tell a loop's condition from a choice between two unknown values",
    False,  # noqa: FBT003 - an answer
    {
        "max(probe, probe)": True,
        "min(probe, probe)": True,
        "bool(probe)": False,
        "max(1, 2); bool(probe)": False,
        "while probe: break": False,
    },
)
def chooses(code: CodeType, place: int) -> bool:
    """Return whether `max` or `min` compares two values there.

    No loop waits for the result of such a comparison.
    """
    chosen = False
    for at in dis.get_instructions(code):
        if at.offset >= place:
            break
        if at.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            chosen = chosen or at.argval in _CHOICES
        elif at.opname.startswith("CALL"):
            chosen = False
    return chosen and dis.opname[code.co_code[place]].startswith("CALL")


@self_tested(
    "virtual card",
    "tell an operator's refusal from a mistake in its code",
    False,  # noqa: FBT003 - an answer
    {"raise ValueError(x)": True, "assert x": True, "x.y": False, "x()": False, "1 / 0": False},
)
def raises_here(code: CodeType, place: int) -> bool:
    """Return whether a `raise` statement is executed there."""
    return dis.opname[code.co_code[place]] == "RAISE_VARARGS"
