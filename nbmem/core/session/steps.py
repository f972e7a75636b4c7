"""Assign training steps to phases by the phases' names and order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, takewhile
from typing import Protocol

_BEFORE = ("load", "input", "zero_grad")


class NumberedPhase(Protocol):
    """A phase whose step is to be determined.

    Attributes:
        name: What ran.
        key: Identifies the optimizer; 0 for an update by hand.
        step: Number of its pass; None outside the loop.
        looked_at: Whether it is a forward whose result no backward has used.
        goes_on: Whether it is an optimizer's step that calls a closure and has not ended.
    """

    name: str
    key: int
    step: int | None
    goes_on: bool
    looked_at: bool


def number_steps(phases: Sequence[NumberedPhase]) -> None:
    """Assign training steps to the phases in place; `load` has none.

    A pass ends with the last optimizer step before one of the optimizers steps again. Two
    optimizers, as in a GAN, make one pass. Without optimizers a pass ends with each backward, and
    without backwards with each forward. An optimizer that steps only after another one's last step,
    or after a new model's weights, belongs to another loop. It begins a pass of its own. Updates by
    hand between the steps of an optimizer belong to an inner loop (MAML), and end no pass.

    Evaluations after a pass (an accuracy, a sample) are a part of it if most passes have them.
    Otherwise they are evaluations between epochs or after the loop, and have no step. If every pass
    is preceded by as many as the first one, they begin the pass: actions, features of a large
    batch.
    """
    names = {phase.name for phase in phases}
    closer = next((n for n in ("optimizer", "backward", "forward") if n in names), "inference")
    ends = _pass_ends(phases, closer)
    heads = _zero_grad_begins_passes(phases, ends, closer)
    step, ended = 0, False
    looks: dict[int, list[NumberedPhase]] = {}  # by the pass that they follow
    for index, phase in enumerate(phases):
        if phase.name == "load":
            continue
        if ended and _opens_pass(phases, index, closer, heads=heads):
            step, ended = step + 1, False
        phase.step = step
        if ended and (step in looks or _is_evaluation(phases, index)):
            looks.setdefault(step, []).append(phase)
        ended = ended or index in ends
    if _evaluations_come_first(phases, looks, step):
        for behind, found in looks.items():
            for phase in found:
                phase.step = behind + 1
    elif 2 * len(looks) <= step + 1:
        for phase in chain.from_iterable(looks.values()):
            phase.step = None


def _evaluations_come_first(
    phases: Sequence[NumberedPhase], looks: dict[int, list[NumberedPhase]], last: int
) -> bool:
    """Return whether evaluations begin the passes rather than follow them.

    They do if each later pass is preceded by as many as the first one.
    """
    if not last or set(looks) != set(range(last)):
        return False
    passes: list[list[str]] = [[] for _ in range(last + 1)]
    for phase in phases:
        if phase.step is not None:
            passes[phase.step].append(phase.name)
    heads = [list(takewhile(("inference", *_BEFORE).__contains__, names)) for names in passes]
    first, *later = (names.count("inference") for names in heads)
    behind = (sum(one.name == "inference" for one in looks[step]) for step in range(last))
    return first > 0 and all(first == sum(both) for both in zip(behind, later, strict=True))


def _pass_ends(phases: Sequence[NumberedPhase], closer: str) -> set[int]:
    closing = _without_inner(phases, closer)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index in closing:
        first.setdefault(phases[index].key, index)
        last[phases[index].key] = index
    ends: set[int] = set()
    seen: set[int] = set()
    before: int | None = None
    for index in closing:
        key = phases[index].key
        again = closer == "backward" or key in seen
        if before is not None and (
            again
            or _follows(key, phases[before].key, first, last)
            or any(phase.name == "load" for phase in phases[before:index])
        ):
            ends.add(before)
            seen.clear()
        seen.add(key)
        before = index
    if before is not None:
        ends.add(before)
    return ends


def _without_inner(phases: Sequence[NumberedPhase], closer: str) -> list[int]:
    """Return the indices of the phases that may end a pass.

    Updates by hand have no key, and may be inside another optimizer's passes. They are then
    omitted.
    """
    closing = [i for i, p in enumerate(phases) if p.name == closer and not p.goes_on]
    known = [i for i in closing if phases[i].key]
    between = known and any(known[0] < i < known[-1] and not phases[i].key for i in closing)
    return known if closer == "optimizer" and between else closing


def _follows(key: int, before: int, first: dict[int, int], last: dict[int, int]) -> bool:
    """Return whether an optimizer's loop begins after another's has ended.

    Two optimizers that step only once are a pair.
    """
    once = first[key] == last[key] and first[before] == last[before]
    return last[before] < first[key] and not once


def _zero_grad_begins_passes(phases: Sequence[NumberedPhase], ends: set[int], closer: str) -> bool:
    """Return whether zero_grad() begins the passes of the loop.

    It then belongs to the phase after it. The first pass begins with it, and later passes do not
    call it between forward and backward. After the last pass it is only called for another pass. A
    dry run before the loop, whose result no backward uses, begins no pass.
    """
    names = [phase.name for phase in phases]
    trains = (p.name not in _BEFORE and not _is_unused_by_backward(p, closer) for p in phases)
    first = next((i for i, does in enumerate(trains) if does), 0)
    if not ends or "zero_grad" not in names[:first]:
        return False
    inner = sorted(ends)[:-1]
    if inner and all(_zeroes_before_backward(names, end) for end in inner):
        return False  # the call before the first forward had another purpose
    behind = names[max(ends) + 1 :]
    return "zero_grad" not in behind or "forward" in behind or "backward" in behind


def _zeroes_before_backward(names: Sequence[str], end: int) -> bool:
    """Return whether zero_grad() directly precedes the next backward.

    The backward is the first one after a pass's end.
    """
    found = next((i for i in range(end, len(names)) if names[i] == "backward"), None)
    return found is not None and names[found - 1] == "zero_grad"


def _opens_pass(phases: Sequence[NumberedPhase], index: int, closer: str, *, heads: bool) -> bool:
    """Return whether a phase after a pass's end begins the next pass.

    Evaluation in between does not. A teacher or a target network does, if it receives the batch of
    the forward after it. Forwards between the pass and a zero_grad() at the loop's head do not. Nor
    do forwards after the last pass: a drawn sample, an accuracy computed with gradients on.
    """
    if phases[index].name == "zero_grad" and not heads:
        return False
    at = _next(phases, index)
    if at is None or _is_unused_by_backward(phases[at], closer):
        return at is not None and (
            closer == "inference" or _belongs_to_next_pass(phases, index, at)
        )
    if heads and phases[at].name == "forward" and not _has_zero_grad(phases, index, at):
        backward = next((i for i in range(at, len(phases)) if phases[i].name == "backward"), None)
        return backward is not None and not _has_zero_grad(phases, at, backward)
    return True


def _is_evaluation(phases: Sequence[NumberedPhase], index: int) -> bool:
    """Return whether a phase that begins no pass is part of an evaluation.

    It evaluates the model, or prepares the batch for the evaluation.
    """
    return phases[index].name != "zero_grad" and _next(phases, index) is not None


def _belongs_to_next_pass(phases: Sequence[NumberedPhase], index: int, at: int) -> bool:
    """Return whether an inference belongs to the pass that follows it.

    It does if a batch was loaded for it and a forward or directly a backward follows. Then its
    result is a part of the loss.
    """
    behind = (phases[i] for i in range(at, len(phases)))
    then = next(
        (p for p in behind if p.name != "zero_grad" and not _is_unused_by_backward(p, "")), None
    )
    return index < at and then is not None and then.name in ("forward", "backward")


def _is_unused_by_backward(phase: NumberedPhase, closer: str) -> bool:
    """Return whether a phase computes results that no backward uses.

    If passes end with forwards, there is no backward, and only `inference` phases count.
    """
    return phase.name == "inference" or (phase.looked_at and closer != "forward")


def _has_zero_grad(phases: Sequence[NumberedPhase], first: int, last: int) -> bool:
    return any(phases[index].name == "zero_grad" for index in range(first, last))


def _next(phases: Sequence[NumberedPhase], index: int) -> int | None:
    """Return the index of the next phase that is not preparation, or None.

    The search runs over indices, because a slice would copy the rest each time.
    """
    return next((i for i in range(index, len(phases)) if phases[i].name not in _BEFORE), None)
