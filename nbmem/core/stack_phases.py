"""Phases of a recording that has only stacks: torch's own functions in them say what ran.

A module's call, an optimizer's step and the engine's entry are functions of torch's own files, in
every release; the engine's thread has no Python stack. A forward without gradients cannot be told
from one with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.events import Action
from nbmem.core.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nbmem.core.events import Events, Frame, Stack

_OTHER = "other"
_NO_CALL = -1


def phases_of(events: Events, stacks: Sequence[Stack]) -> tuple[Span, ...]:
    """The phases, in order; none where no stack shows a module's call.

    Args:
        events: One card's events.
        stacks: What their stacks refer to.
    """
    kinds = _kinds(stacks)
    if "forward" not in kinds:
        return ()
    stretches: list[tuple[str, int, int]] = []
    before, begun = "load", 0
    first_call = _NO_CALL
    calls = _calls(stacks, kinds)
    left = False  # whether the module of the forward that runs has returned
    for position, stack in _births(events):
        kind = kinds[stack] if stack >= 0 else "backward"
        phase = _phase(before, kind)
        call = calls[stack] if kind == "forward" else _NO_CALL
        if phase != before or (left and call != _NO_CALL and call == first_call):
            stretches.append((before, begun, position))
            before, begun, first_call, left = phase, position, call, False
        left = left or (phase == "forward" and kind == _OTHER)
    stretches.append((before, begun, len(events)))
    return tuple(_spans(events, stretches))


def _kinds(stacks: Sequence[Stack]) -> list[str]:
    """What each stack says; a frame is looked at once, however many stacks share it."""
    known: dict[int, str] = {}
    kinds = []
    for stack in stacks:
        kind = _OTHER if stack else "backward"
        for frame in stack:
            told = known.get(id(frame))
            if told is None:
                told = known[id(frame)] = _kind(frame)
            if told is not _OTHER:
                kind = told
                break
        kinds.append(kind)
    return kinds


def _kind(frame: Frame) -> str:
    if frame.function == "_call_impl" and frame.file.endswith("nn/modules/module.py"):
        return "forward"
    if "torch/optim/" in frame.file:
        return "optimizer"
    if frame.function in ("_engine_run_backward", "_make_grads"):
        return "backward"
    return _OTHER


def _calls(stacks: Sequence[Stack], kinds: Sequence[str]) -> list[int]:
    """For each stack which call of which outermost module it lies in, as a number.

    The same call has the same number in every pass of a loop; _NO_CALL outside of any.
    """
    numbers: dict[object, int] = {}
    calls = []
    for stack, kind in zip(stacks, kinds, strict=True):
        if kind != "forward":
            calls.append(_NO_CALL)
            continue
        at = max(i for i, frame in enumerate(stack) if frame.function == "_call_impl")
        module = stack[max(0, at - 1)]
        call = (module.function, module.file, *map(id, stack[at + 1 :]))
        calls.append(numbers.setdefault(call, len(numbers)))
    return calls


def _births(events: Events) -> Iterator[tuple[int, int]]:
    """Where memory is taken, with the segments that are taken for it, and by which stack."""
    taken = -1
    for position, (action, stack) in enumerate(
        zip(events.action.tolist(), events.stack.tolist(), strict=True)
    ):
        if action == Action.ALLOC:
            yield (position if taken < 0 else taken), stack
            taken = -1
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            taken = position if taken < 0 else taken
        else:
            taken = -1


def _phase(before: str, kind: str) -> str:
    """The phase that something belongs to, by the phase that it follows."""
    if kind == _OTHER:
        return "input" if before in ("backward", "optimizer") else before
    if kind == "backward" and before in ("load", "input"):
        return before  # a thread that is no engine's, or an event without a stack
    return kind


def _spans(events: Events, stretches: Sequence[tuple[str, int, int]]) -> Iterator[Span]:
    names = [name for name, _, _ in stretches]
    closer = next((n for n in ("optimizer", "backward") if n in names), "forward")
    step, closed = 0, False
    times = events.t_ns
    for name, first, last in stretches:
        if closed and name in ("input", "forward"):
            step, closed = step + 1, False
        if last > first:
            yield Span(
                kind="phase",
                name=name,
                step=None if name == "load" else step,
                parent=0,
                t0_ns=int(times[first]),
                t1_ns=int(times[min(last, len(times) - 1)]),
                first=(first,),
                last=(last,),
            )
        closed = closed or name == closer
