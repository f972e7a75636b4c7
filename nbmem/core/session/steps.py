"""Assign training steps to phases by the phases' names and order."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


_BEFORE = ("load", "input", "zero_grad")


class NumberedPhase(Protocol):
    """A phase whose step is to be determined.

    Attributes:
        name: What ran.
        key: Tells one optimizer from another; 0 for an update by hand.
        step: Number of its pass; None outside of the loop.
        looked_at: Whether it is a forward whose result no backward has asked for.
        goes_on: Whether it is an optimizer's step that calls a closure and is not over yet.
    """

    name: str
    key: int
    step: int | None
    goes_on: bool
    looked_at: bool


def number_steps(phases: Sequence[NumberedPhase]) -> None:
    """Assign training steps to the phases in place; `load` has none.

    A pass ends with the last optimizer before one of them steps again (two optimizers, as in a GAN,
    make one pass); without optimizers with each backward, without those with each forward. An
    optimizer that steps only after another one's last step, or behind a new model's weights, is
    another loop's, and opens a pass of its own. Updates by hand between the steps of one are an
    inner loop's (MAML), and end none.

    What only looks behind a pass (an accuracy, a sample) is a part of it where most passes have
    such; else it is an evaluation between epochs or behind the loop, and has no step. Where as many
    stand before every pass as before the first, they begin it: actions, a large batch's features.
    """
    names = {phase.name for phase in phases}
    closer = next((n for n in ("optimizer", "backward", "forward") if n in names), "inference")
    ends = _pass_ends(phases, closer)
    heads = _zero_grad_begins_passes(phases, ends, closer)
    step, ended = 0, False
    looks: dict[int, list[NumberedPhase]] = {}  # by the pass that they are behind
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

    They do where as many stand before each later pass as before the first one.
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

    Updates by hand have no key, and may lie inside another optimizer's passes. They are
    then left out.
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

    It then belongs to what follows it. The first pass begins with it, and later ones do not call it
    between forward and backward. Behind the last one it is only called for another. A dry run
    before the loop, whose result no backward uses, begins no pass.
    """
    names = [phase.name for phase in phases]
    trains = (p.name not in _BEFORE and not _is_unused_by_backward(p, closer) for p in phases)
    first = next((i for i, does in enumerate(trains) if does), 0)
    if not ends or "zero_grad" not in names[:first]:
        return False
    inner = sorted(ends)[:-1]
    if inner and all(_zeroes_before_backward(names, end) for end in inner):
        return False  # the one before the first forward was called for something else
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

    Evaluation in between does not. But a teacher or a target network does, which gets the batch of
    the forward behind it. Forwards between the pass and a zero_grad() at the loop's head do not
    either, nor do those behind the last pass: a sample is drawn, an accuracy is computed with
    gradients on.
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

    It evaluates the model, or prepares the batch for that.
    """
    return phases[index].name != "zero_grad" and _next(phases, index) is not None


def _belongs_to_next_pass(phases: Sequence[NumberedPhase], index: int, at: int) -> bool:
    """Return whether an inference belongs to the pass that follows it.

    It does where a batch was loaded for it, and a forward or at once a backward follows: then its
    result is a part of the loss.
    """
    behind = (phases[i] for i in range(at, len(phases)))
    then = next(
        (p for p in behind if p.name != "zero_grad" and not _is_unused_by_backward(p, "")), None
    )
    return index < at and then is not None and then.name in ("forward", "backward")


def _is_unused_by_backward(phase: NumberedPhase, closer: str) -> bool:
    """Return whether a phase computes results that no backward uses.

    Where passes end with forwards, there is no backward, and only `inference` phases count.
    """
    return phase.name == "inference" or (phase.looked_at and closer != "forward")


def _has_zero_grad(phases: Sequence[NumberedPhase], first: int, last: int) -> bool:
    return any(phases[index].name == "zero_grad" for index in range(first, last))


def _next(phases: Sequence[NumberedPhase], index: int) -> int | None:
    """Return the index of the next phase that is not preparation, or None.

    The search runs over indices, because a slice would copy the rest each time.
    """
    return next((i for i in range(index, len(phases)) if phases[i].name not in _BEFORE), None)
