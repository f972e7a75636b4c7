"""The highest moment comes in the second iteration, not in the first.

What it sees
    - A recording of one iteration whose optimizer made its state in it.
    - A training loop whose later iterations begin while variables still hold tensors that the
      forward of the one before has made, if that is a tenth of the peak and 1% of the card. Also
      an attribute whose graph keeps them: `self.loss` of the last step.
    - Variables with the results of one pass of an inference that lie beside the next pass, a third
      of the peak and 5% of the card or more.
    - Variables of a training step that lie beside the evaluation behind it, at the peak.
    - A list with a name like `outputs` that has an evaluation's results, and lives through the
      training behind it, which gives them to no module.
What it costs
    The forward and backward of every later iteration run beside that state, or beside those
    tensors: what one iteration shows is too little by their bytes.
Do instead
    Trace two iterations before you choose a batch or a card. `del` such variables at the end of the
    loop's body: a name keeps its tensors until it is assigned anew, after the next forward. Of an
    attribute that is only logged keep `loss.detach()`.
When to ignore it
    You train one step only, or you know. The next iteration reads what the variable holds (a hidden
    state).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import GRAPH_OF, STEP, without_shape
from nbmem.core.session.variable_paths import parse_path
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.analysis.what_if import MAX_EVENTS, try_again
from nbmem.report.ledger.observations import rows_at
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Findings, Rule, exact, fmt, fmt_range, simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.tips.evidence import Evidence

LEAST_HELD_OVER = 0.1
"""Part of the peak from which variables of the iteration before are told."""
LEAST_OF_CARD = 0.01
"""Part of a card with room from which they are told."""
LEAST_OF_ALL = 0.05
"""Part of all such bytes from which a variable is named."""
RESULTS = ("out", "pred", "result", "logit", "score", "val", "eval", "test")
"""Parts of names that tell of an evaluation's results."""
FEWEST_PASSES, BESIDE = 3, 1 / 3
"""Passes of an inference that are a loop, and the part of the peak from which what lies beside the
next one is told."""
LISTED = 4
"""Results of an evaluation from which a list of them is told."""
SHARE = 0.05
"""Part of the recorded peak by which the second must be higher."""
KEPT = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.OPTIMIZER_STATE,
    Category.WORKSPACE,
    Category.COMMUNICATION,
)
"""What an iteration allocates once; the next iteration allocates the rest anew."""


def check(e: Evidence) -> Findings:
    """Find what only later iterations have beside their forward."""
    yield from _held_over(e) if len(e.step_ends) > 1 else _with_state(e)
    yield from _of_evaluation(e)
    yield from _of_training(e)
    if not e.trains:
        yield from _of_inference(e)


def _of_inference(e: Evidence) -> Findings:
    """Find variables that hold one pass's results beside the next pass.

    A dictionary that hooks fill, or the results of a batch: they are freed when the next ones are
    there. What grows is told by another rule.
    """
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    bounds = [ledger.bounds(s) for _, s in phases.spans if s.name == "inference"]
    if len(bounds) < FEWEST_PASSES:
        return
    begins = np.array([begin for begin, _ in bounds] + [ledger.events], np.int64)
    rows = np.flatnonzero(phases.named(ledger.born_in, "inference"))
    of_pass = np.searchsorted(begins, a.allocated_at[rows], "right")
    following = begins[np.minimum(of_pass, len(bounds))]
    after = begins[np.minimum(of_pass + 1, len(bounds))]
    late = (a.freed[rows] > following) & (a.freed[rows] <= after) & (of_pass < len(bounds))
    rows, since = rows[late], following[late]
    high = e.peak_saving(rows, since)
    found = {row: _variable(ledger.name(row) or "") for row in rows.tolist()}
    named = np.array([bool(found[row]) for row in rows.tolist()], bool)
    rows, since = rows[named], since[named]
    gain = e.peak_saving(rows, since)
    sizes: dict[str, int] = {}
    for row in rows.tolist():
        sizes[found[row]] = sizes.get(found[row], 0) + int(a.block[row])
    names = [name for name, size in sizes.items() if size >= LEAST_OF_ALL * sum(sizes.values())]
    if names and e.dominates(gain, BESIDE) and e.matters(gain):
        released = _released(sorted(names, key=sizes.__getitem__, reverse=True))
        yield RULE.finding(
            title=f"`{released}` at the end of the loop: {fmt_range(gain, high)} less at the peak",
            evidence=f"{' and '.join(names)} hold{'s' * (len(names) == 1)} the results of one pass "
            "until the next pass has made its own. If only a part is read later, keep that part.",
            saves=simulated(gain, high),
            code=f"{released}   # at the end of the loop's body",
        )


def _held_over(e: Evidence) -> Findings:
    """Find variables that held one iteration's output during the next."""
    if not e.trains:
        return
    card_ledger, a = e.card_ledger, e.card_ledger.allocations
    step = np.array([*card_ledger.phases.passes, -1], np.int64)[card_ledger.born_in]
    ends = e.step_ends
    over_next = np.append(_forwards(e, len(ends))[2:], [card_ledger.events] * 2)
    made = card_ledger.phases.named(card_ledger.born_in, "forward") & (step >= 0)
    made &= (a.freed > ends[step]) & (a.freed <= over_next[step])
    variables: dict[str, list[int]] = {}
    for row in np.flatnonzero(made & (step + 1 < len(ends))).tolist():
        variable = _variable(card_ledger.name(row) or "")
        if variable:
            variables.setdefault(variable, []).append(row)
    rows = np.array([*chain.from_iterable(variables.values())], np.int64)
    by_graph = [row for name in variables for row in variables[name] if name.startswith(GRAPH_OF)]
    given = card_ledger.phases.named(card_ledger.born_in, "input") & (step + 1 < len(ends))
    given &= (a.freed > ends[step]) & e.freed_with(np.array(by_graph, np.int64))
    rows = np.append(rows, np.flatnonzero(given))
    gain = e.peak_saving(rows, ends[step[rows]])
    if not (e.dominates(gain, LEAST_HELD_OVER) and e.matters(gain, LEAST_OF_CARD)):
        return
    sizes = {variable: int(a.block[mine].sum()) for variable, mine in variables.items()}
    names = [name for name in sizes if sizes[name] >= LEAST_OF_ALL * sum(sizes.values())]
    names.sort(key=sizes.__getitem__, reverse=True)
    released = _released(names)
    yield RULE.finding(
        title=f"`{released}` at the end of the loop: {fmt(gain)} less at the peak",
        evidence=f"{' and '.join(names)} hold{'s' * (len(names) == 1)} what the forward made until "
        "the next iteration assigns the name anew: its forward ran beside these tensors, which "
        "the first one's did not.",
        saves=exact(gain),
        code=f"{released}   # at the end of the loop's body",
    )


def _of_evaluation(e: Evidence) -> Findings:
    """Find an evaluation's results that lie beside the training behind it.

    What a module is given, or a graph saves, is used: labels that a model has predicted.
    """
    ledger, a, seen = e.card_ledger, e.card_ledger.allocations, e.trace.storage_labels
    begins = [ledger.bounds(s)[0] for _, s in ledger.phases.spans if s.name == "forward"]
    forwards = np.array([*begins, ledger.events], np.int64)
    made = ledger.phases.named(ledger.born_in, "inference") & (a.allocated_at >= 0)
    rows = np.flatnonzero(made & (ledger.category == Category.USER_TENSORS))
    since = forwards[np.searchsorted(forwards, a.allocated_at[rows])]
    given = np.isin(seen.category, (Category.INPUTS, Category.ACTIVATIONS))
    used = {*rows_at(a, seen.addr[given], seen.position[given], ledger.events).tolist()}
    variables: dict[str, list[int]] = {}
    for at in np.flatnonzero((a.freed[rows] > since) & (since < ledger.events)).tolist():
        name = ledger.name(int(rows[at])) or ""
        if "[" in name and _is_result(_variable(name)):
            variables.setdefault(_variable(name), []).append(at)
    for name, mine in variables.items():
        without = e.allocated_without(rows[mine], since[mine])
        beside, peak = int((ledger.allocated - without).max()), int(without.max())
        if len(mine) < LISTED or used & {*rows[mine].tolist()}:
            continue
        if not e.is_needless(beside) or not e.worth(e.report.peak.allocated - peak):
            continue
        yield RULE.finding(
            title=f"`{name}.clear()` behind the evaluation: {fmt(beside)} less in the training",
            evidence=f"{name} keeps {len(mine)} results of evaluations through the training "
            "behind them, which gives them to no module and saves them for no backward.",
            saves=exact(beside),
            code=f"{name}.clear()   # once they are evaluated",
        )


def _is_result(variable: str) -> bool:
    """Return whether a variable's name tells of an evaluation's results.

    A list of labels that a model has predicted may be read by a loss that saves nothing.
    """
    own = variable.rpartition(".")[2].lower()
    return any(part in own for part in RESULTS) and not marks_intended_copy(variable)


def _of_training(e: Evidence) -> Findings:
    """Find what a training step left beside the evaluation behind it."""
    ledger, a, phases = e.card_ledger, e.card_ledger.allocations, e.card_ledger.phases
    bounds = [(span.name, *ledger.bounds(span)) for _, span in phases.spans]
    stepped = np.array([end for name, _, end in bounds if name == "optimizer"] + [ledger.events])
    begins = {
        kind: np.array([begin for name, begin, _ in bounds if name == kind] + [ledger.events])
        for kind in ("forward", "inference")
    }
    step = stepped[np.searchsorted(stepped[:-1], a.allocated_at, "right")]
    forward, evaluation = (starts[np.searchsorted(starts[:-1], step)] for starts in begins.values())
    made = phases.named(ledger.born_in, "input", "forward") & (evaluation < forward)
    made &= np.isin(ledger.category, (Category.INPUTS, Category.ACTIVATIONS))
    late = np.flatnonzero(made & (a.freed > evaluation)).tolist()
    found = {row: _variable(ledger.name(row) or "") for row in late}
    rows = np.array([row for row, name in found.items() if name], np.int64)
    since = step[rows]
    gain = e.peak_saving(rows, since)
    if e.is_needless(gain):
        largest = rows[np.argsort(-a.block[rows])].tolist()
        names = [found[row] for row in largest if a.block[row] >= LEAST_OF_ALL * gain]
        released = _released([*dict.fromkeys(names)])
        yield RULE.finding(
            title=f"`{released}` before the evaluation: {fmt(gain)} less at the peak",
            evidence="An evaluation makes the peak, beside what the training step before it has "
            "left in variables.",
            saves=exact(gain),
            code=f"{released}   # before the evaluation",
        )


def _forwards(e: Evidence, steps: int) -> Ints:
    """Return where each step's first forward begins, or where it ends."""
    found, phases = e.step_ends.copy(), e.card_ledger.phases
    for step, (_, span) in zip(phases.passes, phases.spans, strict=True):
        if span.name == "forward" and 0 <= step < steps:
            found[step] = min(found[step], e.card_ledger.bounds(span)[0])
    return found


def _released(names: Sequence[str]) -> str:
    """Return code that releases variables, and graphs of attributes."""
    graphs = [name.removeprefix(GRAPH_OF) for name in names if name.startswith(GRAPH_OF)]
    variables = [name for name in names if not name.startswith(GRAPH_OF)]
    detached = [f"{name} = {name}.detach()" for name in graphs]
    return "; ".join([*([f"del {', '.join(variables)}"] if variables else []), *detached])


def _variable(name: str) -> str:
    """Return the variable or attribute in a tensor's name, or "".

    An attribute of which only the graph has the tensor is found with its graph: it is read later.
    """
    found = parse_path(without_shape(name))
    place = found.path.partition("[")[0]
    if not found.can_be_deleted or not is_expression(found.path):
        return ""
    if found.by_graph:
        return f"{GRAPH_OF}{found.path}" if "." in found.path else ""
    return place


def _with_state(e: Evidence) -> Findings:
    """Replay an iteration with optimizer state that it did not have."""
    card_ledger = e.card_ledger
    names = card_ledger.phases.names.tolist()
    if e.ran_out or len(e.step_ends) != 1 or "backward" not in names or "optimizer" not in names:
        return
    if _steps_again(e):
        return  # a later iteration is there, with another optimizer of that name
    opens = next((i for i, n in enumerate(names) if n in ("input", "forward")), None)
    if opens is None or card_ledger.events > MAX_EVENTS:
        return
    begins, _ = card_ledger.bounds(card_ledger.phases.spans[opens][1])
    # An evaluation after the loop belongs to its last step, and to no further iteration.
    closing = [s for s in e.session.spans if s.name in ("optimizer", "zero_grad")]
    ends = max(card_ledger.bounds(span)[1] for span in closing)
    a = card_ledger.allocations
    state = card_ledger.category == Category.OPTIMIZER_STATE
    state &= np.isin(card_ledger.born_in, np.flatnonzero(card_ledger.phases.names == "optimizer"))
    state &= a.freed >= ends
    before, size = int(a.allocated_at[state].min(initial=ends)), int(a.block[state].sum())
    peak = e.report.peak.allocated
    low, high = sorted(_again(e, begins, ends, late=late) for late in (False, True))
    if not size or not e.dominates(low - peak, SHARE):
        return
    first = int(card_ledger.allocated[begins : before + 1].max())
    yield RULE.finding(
        title=f"The second iteration will peak at {fmt_range(low, high)}, "
        f"{fmt_range(low - peak, high - peak)} above the first",
        evidence=f"Forward and backward peaked at {fmt(first)} before the optimizer made "
        f"{fmt(size)} of state; from now on it is there from the start.",
        saves=simulated(low - peak, high - peak),
    )


def _steps_again(e: Evidence) -> bool:
    """Return whether optimizers of one name stepped twice."""
    calls = e.trace.calls
    names = [] if calls is None else [e.session.names[index] for index in calls.name.tolist()]
    steps = [name for name in names if name.endswith(STEP)]
    return len(set(steps)) < len(steps)


def _again(e: Evidence, begins: int, ends: int, *, late: bool) -> int:
    """Return the allocated peak if the iteration runs once more.

    What is allocated once stays. Gradients are freed where the start of the loop sets them to None.
    A batch, an output and a loss are freed when their names are reassigned.

    Args:
        e: The recording.
        begins: Position at which the first iteration began.
        ends: Position at which it ended.
        late: Reassign an output's name when the loss is known, since the model itself computes the
            loss; else at once.
    """
    card_ledger, a = e.card_ledger, e.card_ledger.allocations
    left = (a.allocated_at >= begins) & (a.allocated_at < ends) & (a.freed >= ends)
    gradients = left & (card_ledger.category == Category.GRADIENTS)
    once = left & np.isin(card_ledger.category, KEPT)
    zeroed = _zeroed_at(e)
    if zeroed is None:
        once |= gradients  # a later backward adds to them in place
    rows = np.flatnonzero(left & ~once)
    goes = a.allocated_at[rows] + 1
    if late:
        lasts = np.array([card_ledger.bounds(s)[1] for _, s in card_ledger.phases.spans], np.int64)
        forward = card_ledger.phases.named(card_ledger.born_in[rows], "forward")
        goes = np.where(forward, lasts[card_ledger.born_in[rows]], goes)
    goes = goes if zeroed is None else np.where(gradients[rows], zeroed, goes)
    born = a.allocated_at[rows].tolist()
    instead = dict(zip(born, goes.tolist(), strict=True))
    return try_again(
        card_ledger, begins, ends, once=set(a.allocated_at[once].tolist()), instead=instead
    ).peak_allocated


def _zeroed_at(e: Evidence) -> int | None:
    """Return where the loop sets old gradients to None, or None.

    It is before the loop's own backward.
    """
    for span in e.session.spans:
        if span.kind == "phase" and span.name == "backward":
            return None
        if span.kind == "phase" and span.name == "zero_grad":
            return e.card_ledger.bounds(span)[0]
    return None


RULE = Rule(name="second_step_peak", text=__doc__, check=check)
