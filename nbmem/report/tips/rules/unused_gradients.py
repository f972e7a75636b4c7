"""A backward goes on into a module whose gradients are not used.

What it sees
    Gradients that zero_grad() freed before their own optimizer's step, of a module whose results
    another one took in the same forward, where the other one's gradients were used: the step of a
    GAN's critic that goes back through the generator. So are activations of a frozen module that
    a backward frees behind the last gradient of a weight: its input was made to want gradients.
    So is a module whose weights get gradients, and are in no optimizer. It
    is shown if the peak is a quarter lower without them and what the module's forward saved for
    them, or a tenth where that is 1% of the card.
What it costs
    The module's activations and its part of the backward, in every such step.
Do instead
    `fake.detach()` before the other module takes it, or the first module under `torch.no_grad()`.
When to ignore it
    Another loss of the same step goes back through these activations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import (
    STEP,
    common_path,
    is_graph_name,
    is_place,
    module_of_parameter,
    saver_of,
    without_shape,
)
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.module_passes import NO_MODULE, Passes
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.tips.detectors.untrained_modules import never_stepped
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated
from nbmem.report.tips.weight_names import split_name

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence


class _Needless(NamedTuple):
    """A module's part of one backward, in which nothing is used.

    Attributes:
        module: The module.
        result: The variable that has the module's result, or "".
        rows: What need not be on the card.
        since: For each of them, the position from which it need not.
    """

    module: str
    result: str
    rows: Ints
    since: Ints


def check(e: Evidence) -> Findings:
    """Find parts of backwards that serve nothing."""
    yield from _thrown_away(e)
    yield from _frozen(e)
    yield from _without_optimizer(e)


def _without_optimizer(e: Evidence) -> Findings:
    """Find modules that backwards go through, and no optimizer steps."""
    for module in never_stepped(e):
        name, low, high = module.name, module.low, module.high
        if e.is_needless(low):
            yield RULE.finding(
                title=f"`{name}.requires_grad_(False)`, since no optimizer has its weights: "
                f"{fmt_range(low, high)} less at the peak",
                evidence=f"Each backward adds to the gradients of {name}, which no optimizer uses "
                f"or clears. {module.passes} passes kept their activations for them.",
                saves=estimated(low, high),
                code=f"{name}.requires_grad_(False)" if is_expression(name) else None,
            )


def _frozen(e: Evidence) -> Findings:
    """Find a frozen module with activations that no gradient needs.

    A backward frees them behind its last gradient of a weight, and leaves nothing there.
    """
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    passes = e.passes
    parts: list[Ints] = []
    tails: list[Ints] = []
    for phase in np.flatnonzero(phases.names == "backward").tolist():
        made, end = passes.made_in(phase), phases.bounds(phase)[1]
        filled = made[ledger.category[made] == Category.GRADIENTS]
        last = int(a.allocated_at[filled].max(initial=0)) or end
        left = made[(a.allocated_at[made] > last) & (a.freed[made] > end)].tolist()
        if not any(_variable(ledger.name(row)) for row in left):  # no `x.grad`
            saved = (a.freed > last) & (a.freed < end) & (a.allocated_at < phases.bounds(phase)[0])
            parts.append(np.flatnonzero(saved & (ledger.category == Category.ACTIVATIONS)))
            tails.append(made[a.allocated_at[made] > last])
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    trained = _with(e, Category.GRADIENTS)
    savers = {row: saver_of(without_shape(ledger.name(row) or "")) for row in rows.tolist()}
    modules = {row: one for row, one in savers.items() if one and one not in trained}
    place = common_path(f"{module}." for module in modules.values())
    rows = np.array([*modules], np.int64)
    inside = f"{place}."
    if not place or any(one.startswith(inside) for one in trained):
        return
    if not any(one.startswith(inside) for one in _with(e, Category.WEIGHTS)):
        return
    low = e.peak_saving(rows) - 2 * int(a.block[rows].max(initial=0))
    high = e.peak_saving(np.concatenate([rows, *tails]))
    if e.is_needless(low):
        yield RULE.finding(
            title=f"`{place}` is frozen, and keeps activations for gradients that nobody reads: "
            f"{fmt_range(low, high)} less under torch.no_grad()",
            evidence=f"No weight of {place} gets a gradient, nor does anything before it. It was "
            "given an input that wants gradients, so its graph was kept.",
            saves=estimated(low, high),
        )


def _with(e: Evidence, category: Category) -> set[str]:
    """Return the modules with weights, or with gradients of them."""
    seen = e.trace.storage_labels
    names = np.unique(seen.name[seen.category == category]).tolist()
    paths = (split_name(e.session.names[index]) for index in names)
    return {module_of_parameter(path[0].removesuffix(".grad")) for path in paths if path}


def _thrown_away(e: Evidence) -> Findings:
    """Find parts of backwards that fill gradients in vain."""
    found = list(_needless(e)) if len(e.optimizers) > 1 else []
    if not found:
        return
    rows, since = (np.concatenate([one[at] for one in found]) for at in (2, 3))
    gain = e.peak_saving(rows, since)
    if not e.is_needless(gain):
        return
    module, result = found[-1].module, found[-1].result
    detached = f"`{result}.detach()`" if result else f"Detach what {module} returns"
    yield RULE.finding(
        title=f"{detached} where {module}'s gradients are thrown away: {fmt(gain)} less at the "
        "peak",
        evidence=f"{len(found)} backwards went on into {module}. zero_grad() freed the gradients "
        f"that they filled there before an optimizer's step used them. They, and what {module} "
        "had saved for them, are for nothing.",
        saves=simulated(gain),
    )


def _needless(e: Evidence) -> Iterator[_Needless]:
    ledger, a = e.card_ledger, e.card_ledger.allocations
    passes, phases, steps = e.passes, ledger.phases, _steps(e)
    gradients = np.flatnonzero((ledger.category == Category.GRADIENTS) & (passes.of != NO_MODULE))
    before = 0
    for phase in np.flatnonzero(phases.names == "backward").tolist():
        end = phases.bounds(phase)[1]
        made = passes.made_by_modules(phase, Category.GRADIENTS, Category.OUTPUT_GRADIENTS)
        there = gradients[(a.allocated_at[gradients] < end) & (a.freed[gradients] >= end)]
        born = {
            m: a.allocated_at[made[passes.of[made] == m]]
            for m in np.unique(passes.of[made]).tolist()
        }
        thrown = {m: _thrown(e, there[passes.of[there] == m], end, steps) for m in born}
        used = [int(born[m].max()) for m, vain in thrown.items() if vain is False]
        for module in (m for m, vain in thrown.items() if vain):
            if used and np.median(born[module]) > max(used):
                forwards = [f for f in range(before, phase) if phases.names[f] == "forward"]
                rows = passes.made_in(phase)
                tail = rows[(a.allocated_at[rows] > max(used)) | (passes.of[rows] == module)]
                yield _of(e, passes, module, forwards, tail)
        before = phase


def _steps(e: Evidence) -> list[tuple[Counter[str], Ints]]:
    """Return each optimizer's shapes of parameters and its steps' ends."""
    calls = e.trace.calls
    if calls is None:
        return []
    names = np.array([e.session.names[index] for index in calls.name.tolist()])
    return [
        (Counter(str(tuple(s)) for s in one["shapes"]), calls.last[names == one["name"] + STEP])
        for one in e.optimizers
    ]


def _thrown(
    e: Evidence, rows: Ints, end: int, steps: list[tuple[Counter[str], Ints]]
) -> bool | None:
    """Return whether gradients are freed without a step of their optimizer.

    None if it is not known which optimizer that is: the one with parameters of all these shapes.

    Args:
        e: The recording.
        rows: A module's gradients at the end of a backward.
        end: The position of that end.
        steps: As of `_steps`.
    """
    a, ledger = e.card_ledger.allocations, e.card_ledger
    forms = [split_name(ledger.name(row) or "") for row in rows.tolist()]
    shapes = Counter(form[1].rpartition(" ")[0] for form in forms if form is not None)
    own = [ends for theirs, ends in steps if shapes <= theirs]
    if len(own) != 1 or not len(rows):
        return None
    freed = a.freed[rows]
    stepped = np.searchsorted(own[0], end) < np.searchsorted(own[0], freed)
    return bool(not stepped.any() and (freed < ledger.events).all())


def _of(e: Evidence, passes: Passes, module: int, forwards: list[int], tail: Ints) -> _Needless:
    """Return a module's part of a backward, and what it saved for it.

    What it saved is there until its call has returned: then the result is detached.
    """
    calls, a = e.trace.calls, e.card_ledger.allocations
    rows, since, name = [tail], [np.full(len(tail), -1, np.int64)], passes.modules[module]
    result = ""
    for forward in forwards:
        first, last = e.card_ledger.phases.bounds(forward)
        saved = passes.made_by_modules(forward, Category.ACTIVATIONS)
        mine = passes.of[saved] == module
        inside = (
            []
            if calls is None
            else [
                at
                for at, index in zip(calls.last.tolist(), calls.name.tolist(), strict=True)
                if first <= at <= last and e.session.names[index] == name
            ]
        )
        returned = max(inside, default=last)
        rows.append(saved[mine])
        since.append(np.full(mine.sum(), returned))
        made = passes.made_in(forward)
        names = [
            _variable(e.card_ledger.name(row))
            for row in made[a.allocated_at[made] < returned].tolist()
        ]
        result = next(filter(None, reversed(names)), result)
    return _Needless(name, result, np.concatenate(rows), np.concatenate(since))


def _variable(name: str | None) -> str:
    """Return the variable that is a tensor's name, or ""."""
    text = without_shape(name or "")
    found = "" if is_graph_name(text) or is_place(text) else parse_path(text).path
    return found if is_expression(found) else ""


RULE = Rule(name="unused_gradients", text=__doc__, check=check)
