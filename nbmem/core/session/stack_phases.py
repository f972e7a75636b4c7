"""Derive training phases from recorded Python stacks alone.

A module's call, an optimizer's step and the engine's entry are functions in torch's own files, in
every release. The engine's thread has no Python stack, or one that starts at a function called from
C++ (a Function's backward, a hook). It does not start where a program or a thread starts. A line
that runs before the first forward and again after one is the loop's own: the batch. A forward
without gradients cannot be distinguished from one with them.

With these phases, a recording that was made without nbmem gets the same tips.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nbmem.core.session.events import TAKES, Action, Events, Frame, Stack
from nbmem.core.session.source_files import with_slashes
from nbmem.core.session.spans import Span
from nbmem.core.session.steps import number_steps

_OTHER = "other"
_MODULES = {"_call_impl": "forward", "_apply": "load"}
"""Methods of a module: its call, and the one behind `to()`, `cuda()` and `half()`."""
_NO_CALL = 0
_STARTS = ("<module>", "<cell line: ", "_run_module_as_main", "_bootstrap")
"""Functions with which the stack of a program, a cell or a thread begins."""


@dataclass(slots=True)
class StackPhase:
    """A phase under construction, with its place in one card's events.

    Attributes:
        key: Identifies the optimizer by the line that called it.
    """

    name: str
    first: int
    last: int = -1
    key: int = _NO_CALL
    step: int | None = None
    goes_on: bool = False
    looked_at: bool = False


def phases_of(events: Events, stacks: Sequence[Stack]) -> tuple[Span, ...]:
    """List the phases in order; none where no stack shows a module's call."""
    kinds = _kinds(stacks)
    if "forward" not in kinds:
        return ()
    calls = _calls(stacks, kinds)
    births = list(_allocations(events))
    for stack in _batches(births, kinds):
        kinds[stack] = "input"
    running = StackPhase("load", 0)
    done = [running]
    left = False  # whether the running forward's module has returned
    for position, stack in births:
        kind = kinds[stack] if stack >= 0 else "backward"
        phase = _phase(running.name, kind)
        call = calls[stack] if stack >= 0 else _NO_CALL
        if phase == "optimizer" and running.name == "input" and done[-2].name == "backward":
            running.name, running.key = phase, call  # clipping, unscaling
        again = call not in (_NO_CALL, running.key)
        if phase == "forward":
            again = left and call == running.key != _NO_CALL
        if phase != running.name or (again and phase in ("forward", "optimizer")):
            running.last = position
            running = StackPhase(phase, position, key=call)
            done.append(running)
            left = False
        left = left or (phase == "forward" and kind == _OTHER)
    running.last = len(events)
    number_steps(done)
    return tuple(_spans(events, done))


def _batches(births: Sequence[tuple[int, int]], kinds: Sequence[str]) -> set[int]:
    """Return the indices of the stacks that create the loop's input batches.

    They are outside of torch's functions, and run before the first forward and again later.
    """
    there = [stack for _, stack in births if stack >= 0]
    first = next((i for i, stack in enumerate(there) if kinds[stack] == "forward"), len(there))
    return {s for s in set(there[:first]) & set(there[first:]) if kinds[s] == _OTHER}


def _kinds(stacks: Sequence[Stack]) -> list[str]:
    """Return the phase that each stack indicates.

    Each frame is examined once, even if many stacks share it.
    """
    frames = {id(frame): frame for stack in stacks for frame in stack}
    known = {key: kind for key, frame in frames.items() if (kind := _kind(frame)) is not _OTHER}
    starts = {key for key, frame in frames.items() if frame.function.startswith(_STARTS)}
    kinds = []
    for stack in stacks:
        kinds_of_stack = [known[id(frame)] for frame in stack if id(frame) in known]
        in_engine = not stack or (bool(starts) and id(stack[-1]) not in starts)
        if in_engine or "backward" in kinds_of_stack:
            kinds.append("backward")
        else:
            kinds.append(kinds_of_stack[0] if kinds_of_stack else _OTHER)
    return kinds


def _kind(frame: Frame) -> str:
    file = with_slashes(frame.file)
    if frame.function in _MODULES and file.endswith("nn/modules/module.py"):
        return _MODULES[frame.function]
    if "torch/optim/" in file:
        return "optimizer"
    if frame.function in ("_engine_run_backward", "_make_grads"):
        return "backward"
    return _OTHER


def _calls(stacks: Sequence[Stack], kinds: Sequence[str]) -> list[int]:
    """Assign a number to each stack's outermost module or optimizer call.

    A call is identified by the callee and the caller.

    A call has one number in every pass of a loop; _NO_CALL outside of any call.
    """
    numbers: dict[object, int] = {}
    calls = []
    for stack, kind in zip(stacks, kinds, strict=True):
        if kind not in ("forward", "optimizer"):
            calls.append(_NO_CALL)
            continue
        at = max(i for i, frame in enumerate(stack) if _kind(frame) == kind)
        callee = stack[max(0, at - 1)]
        called = (callee.function, callee.file) if kind == "forward" else ()
        call = (*called, *map(id, stack[at + 1 :]))
        calls.append(numbers.setdefault(call, len(numbers) + 1))
    return calls


def _allocations(events: Events) -> Iterator[tuple[int, int]]:
    """Yield the position and the stack of each allocation.

    If memory was taken from the driver for it, the position is that of the first segment event.
    """
    taken = -1
    for position, (action, stack) in enumerate(
        zip(events.action.tolist(), events.stack.tolist(), strict=True)
    ):
        if action == Action.ALLOC:
            yield (position if taken < 0 else taken), stack
            taken = -1
        elif action in TAKES:
            taken = position if taken < 0 else taken
        else:
            taken = -1


def _phase(before: str, kind: str) -> str:
    """Return the phase of an allocation, given the phase before it."""
    if kind == _OTHER:
        return "input" if before in ("backward", "optimizer") else before
    if kind == "backward" and before in ("load", "input"):
        return before  # a thread other than the engine's, or an event without a stack
    return kind


def _spans(events: Events, stretches: Sequence[StackPhase]) -> Iterator[Span]:
    times = events.t_ns
    for one in stretches:
        if one.last > one.first:
            yield Span(
                kind="phase",
                name=one.name,
                step=one.step,
                parent=0,
                t0_ns=int(times[one.first]),
                t1_ns=int(times[min(one.last, len(times) - 1)]),
                first=(one.first,),
                last=(one.last,),
            )
