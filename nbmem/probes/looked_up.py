"""Whether what a frame looks up just now is called at once, told by its bytecode.

Python has an instruction for looking up a method to call it, but not every call is compiled to it:
where a module imports a name (`import torch.optim as optim`), what is looked up in that name at
the module's own level is taken for a module's function, also once the name is an optimizer's.
https://github.com/python/cpython/blob/v3.11.9/Python/compile.c#L4813
"""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_IN_ONE = sys.version_info >= (3, 12)
"""Since then one instruction looks up attributes and methods, and its lowest bit says which."""
_NAMES = ("LOAD_ATTR", "LOAD_SUPER_ATTR") if _IN_ONE else ("LOAD_METHOD",)
_LOOK_UPS = {dis.opmap[name] for name in _NAMES}
_METHODS = {*_LOOK_UPS, dis.opmap["LOAD_ATTR"]}
_ATTRIBUTE = dis.opmap["LOAD_ATTR"]
_BEFORE_CALLS = ("PRECALL",) if "PRECALL" in dis.opmap else ("CALL", "CALL_KW")
_CALLS = {dis.opmap[name] for name in _BEFORE_CALLS if name in dis.opmap}
_ENDS = {dis.opmap[name] for name in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE")}
_NOTHING = {dis.opmap[name] for name in ("CACHE", "EXTENDED_ARG") if name in dis.opmap}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_EXTENDED = dis.EXTENDED_ARG
_ABOVE = dis.opmap["PUSH_NULL"] if sys.version_info >= (3, 13) else None
"""Since then a call has this above what is called; before, below it."""
_IN_PLACE = dis.opmap["BINARY_OP"], 13
"""The instruction of `a - b` and `a -= b`, and its first argument of the latter kind."""
_STORES = {dis.opmap["STORE_SUBSCR"]: 1}  # values above what is stored into
if "STORE_SLICE" in dis.opmap:
    _STORES[dis.opmap["STORE_SLICE"]] = 2
_COPY = dis.opmap["COPY"]
_NO_WRITES = frozenset(("requires_grad_", "detach_", "share_memory_", "rename_"))
_AHEAD = 200
"""Instructions that are read on, at most, until a call."""


def calls_at_once(frame: FrameType) -> bool:
    """Whether what a frame looks up just now is a method that is called with what follows.

    Anything else keeps what it gets, as `step = model.zero_grad` does, beyond the recording's end.
    """
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] in _LOOK_UPS and (not _IN_ONE or bool(code[at + 1] & 1)):
        return True
    return code[at] == _ATTRIBUTE and _is_called(frame.f_code, at)


def _is_called(code: CodeType, at: int) -> bool:
    """Whether the attribute that is looked up there is what the next call on its level calls."""
    return any(
        instruction in _CALLS and above == argument + _with_names(instruction)
        for instruction, argument, above in _followed(code, at)
    )


def writes_at_once(frame: FrameType) -> bool:
    """Whether the tensor that a frame looks up just now is written to by what follows.

    By a method whose name ends with an underscore, by `-=` and the like, or by an index.
    """
    names = frame.f_code.co_names
    for instruction, argument, above in _followed(frame.f_code, frame.f_lasti):
        if above == 0 and instruction in _METHODS:
            name = names[argument >> 1 if _IN_ONE else argument]
            return name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES
        if (writes := _stores(instruction, argument, above)) is not None:
            return writes
    return False


def _followed(code: CodeType, at: int) -> Iterator[tuple[int, int, int]]:
    """Instructions behind a look-up, each with its argument and how many values lie above.

    Those of one line of execution, as long as what was looked up is on the stack.
    """
    above = 0
    for place, (instruction, argument) in enumerate(_instructions(code, at)):
        if place == 0 and instruction == _ABOVE:
            continue
        yield instruction, argument, above
        if instruction in _JUMPS or instruction in _ENDS:
            return
        given = argument if instruction >= dis.HAVE_ARGUMENT else None
        above += dis.stack_effect(instruction, given)
        if above < 0:  # something else has taken it
            return


def _stores(instruction: int, argument: int, above: int) -> bool | None:
    """Whether an instruction changes what has so many values above it; None if it says nothing."""
    if instruction == _COPY and argument > above:  # for `x[i] -= step`: x first, then i
        return argument == above + 1 > 1
    if above == 1 and instruction == _IN_PLACE[0]:
        return argument >= _IN_PLACE[1]
    return True if _STORES.get(instruction) == above else None


def _with_names(instruction: int) -> int:
    """Whether the arguments' names are a value of their own, the last one."""
    return int(dis.opname[instruction] == "CALL_KW")


def _instructions(code: CodeType, at: int) -> Iterator[tuple[int, int]]:
    """What follows an instruction, without what takes and leaves nothing, with its argument."""
    raw, more = code.co_code, 0
    for index in range(at + 2, min(len(raw), at + 2 * _AHEAD), 2):
        instruction, argument = raw[index], raw[index + 1] | more
        more = argument << 8 if instruction == _EXTENDED else 0
        if instruction not in _NOTHING:
            yield instruction, argument
