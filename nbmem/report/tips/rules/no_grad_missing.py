"""An evaluation keeps activations for a backward that never comes.

What it sees
    A module in eval mode that was called with gradients on and weights that want them, and no
    backward that took back what the pass had kept; or three and more such passes in a recording
    without any backward at all. So are two and more passes of a module beside a training whose
    backwards leave its graphs alone (a teacher), if the peak is a quarter lower without them, or
    a tenth where that is 1% of the card. And a loop in a training pass that keeps what its lines
    made until all is freed before the backward: figures for the log. A frozen net keeps nothing,
    and nothing is said of it.
What it costs
    All activations of the pass, as in training, and the time to record the graph.
Do instead
    `with torch.no_grad():` (or `torch.inference_mode()`) around validation. `model.eval()` alone
    changes dropout and batch norm, not what is kept.
When to ignore it
    You need gradients with respect to the inputs (saliency, adversarial examples).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import is_graph_name
from nbmem.report.analysis.program_names import (
    evaluated_model,
    input_wants_gradient,
    is_beside_training,
    is_expression,
    no_grad_code,
)
from nbmem.report.ledger.allocation_facts import NO_NAME
from nbmem.report.tips.detectors.untrained_modules import loops_with_graph, never_backward
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range, simulated
from nbmem.report.tips.rules import graph_kept

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

FEWEST = 3
"""Passes without a backward that show, for a model in training mode, that none will follow."""
TAKEN_BACK = 0.1
"""Part of a pass's retained bytes freed in a backward from which the pass was for training."""
AT_MOST, AT_LEAST = 4, 1
"""Allocations after which a tensor is freed without a graph: a residual waits for its block, others
do not."""
RELEASED = 0.25
"""Part of the bytes that passes hold which is freed at once when one of their graphs is freed."""
BETWEEN = ("input", "zero_grad")
"""Phases that may occur between a forward and its backward."""
LARGEST = 3
"""Tensors that may stay without a graph, too: a mask, or the skip connections of a U-Net."""


def check(e: Evidence) -> Findings:
    """Find forward passes without a backward, and what they kept."""
    found = list(_alone(e))
    yield from found or _beside_training(e)
    yield from _logged(e)


def _logged(e: Evidence) -> Findings:
    """Find loops that compute figures with a graph which no backward needs."""
    loops = list(loops_with_graph(e))
    if not loops:
        return
    rows, since = (
        np.concatenate([getattr(one, key) for one in loops]) for key in ("rows", "since")
    )
    gain = e.peak_saving(rows, since)
    if e.is_needless(gain):
        yield RULE.finding(
            title=f"What {loops[0].place} computes keeps a graph that no backward goes through: "
            f"{fmt(gain)} less under torch.no_grad()",
            evidence="Each iteration of a loop left tensors of several lines, and all of them were "
            "freed at once before the backward.",
            saves=simulated(gain),
        )


def _beside_training(e: Evidence) -> Findings:
    """Find modules whose graphs no backward goes through: a teacher."""
    for module in never_backward(e):
        name, low, high = module.name, module.low, module.high
        if e.is_needless(low):
            yield RULE.finding(
                title=f"`{name}` under torch.no_grad(): {fmt_range(low, high)} less at the peak",
                evidence=f"No backward goes through the graphs of {module.passes} passes of "
                f"{name}, and none of its weights has a gradient.",
                saves=estimated(low, high),
                code=f"{name}.requires_grad_(False)" if is_expression(name) else None,
            )


def _alone(e: Evidence) -> Findings:
    """Find passes that no backward follows."""
    with_graph = [call for call in e.calls if call["grad"]]
    if not with_graph or input_wants_gradient(e.session):
        return
    evaluated = sum(call["count"] for call in with_graph if not call["training"])
    passes = _passes(e)
    if not passes or not (evaluated or (len(passes) >= FEWEST and not e.phases("backward"))):
        return
    if not evaluated and graph_kept.passes_kept(e) >= graph_kept.FEWEST:
        return  # that rule's tip has more information
    now = e.card_ledger.allocated
    low, high = now - _freed(e, passes, AT_MOST), now - _freed(e, passes, AT_LEAST)
    least = _largest(e, passes)
    saves = (max(0, int(now.max() - low.max()) - least), int(now.max() - high.max()))
    where = "at the peak"
    if not e.worth(saves[1]):  # the peak of the training is higher
        during = _during(e, passes)
        top = int(now[during].max())
        saves = (max(0, top - int(low[during].max()) - least), top - int(high[during].max()))
        where = "while it runs"
    if not e.worth(saves[1]):
        return
    model = evaluated_model(e.session) if evaluated else e.model()
    mode = "There was no backward"
    if evaluated:
        name = "model" if model is None else str(model["name"])
        mode = f"{name} was in eval mode"
        if model is not None and is_beside_training(e.session, model):
            yield _teacher(name, mode, passes, saves, where)
            return
    yield RULE.finding(
        title=f"Evaluate under torch.no_grad(): {fmt_range(*saves)} less {where}",
        evidence=f"{mode}, but gradients were on in {_count(passes)}: what was kept there "
        f"for a backward that never came makes up to {fmt(saves[1])} {where}.",
        saves=estimated(*saves),
        code=no_grad_code(model, trains=bool(e.optimizers)),
    )


def _teacher(
    name: str, mode: str, passes: list[int], saves: tuple[int, int], where: str
) -> Finding:
    """Return the tip on a module beside the one that is trained."""
    return RULE.finding(
        title=f"`{name}` under torch.no_grad(): {fmt_range(*saves)} less {where}",
        evidence=f"{mode} beside a model that is trained, but gradients were on in "
        f"{_count(passes)}. What was kept there makes up to {fmt(saves[1])} {where}.",
        saves=estimated(*saves),
        code=f"{name}.requires_grad_(False)   # its weights are not trained: no graph is kept"
        if is_expression(name)
        else None,
    )


def _count(passes: list[int]) -> str:
    return "one forward pass" if len(passes) == 1 else f"{len(passes)} forward passes"


def _passes(e: Evidence) -> list[int]:
    """Return the forward phases that no backward follows.

    Nor does a later backward free a good part of what they retained.
    """
    names = [span.name for _, span in e.card_ledger.phases.spans]
    return [
        index
        for index, name in enumerate(names)
        if name == "forward"
        and next((n for n in names[index + 1 :] if n not in BETWEEN), "forward")
        in ("forward", "inference")
        and not _taken_back(e, index)
    ]


def _kept(e: Evidence, phase: int) -> Ints:
    """Return the rows that a graph kept during a phase.

    Rows count if retained to the end of the phase, or until the graph was freed as a whole.

    Passes with nothing between them (slices of data that is on the card) are one phase.
    """
    a = e.card_ledger.allocations
    rows = np.flatnonzero(
        (e.card_ledger.born_in == phase) & (e.card_ledger.category != Category.WORKSPACE)
    )
    rows = rows[np.argsort(a.allocated_at[rows])]
    count, size = len(rows), a.block[rows]
    births = np.searchsorted(
        a.allocated_at[rows], a.freed[rows]
    )  # allocations made before its free
    went = np.bincount(births, size, count + 1)
    held = np.append(0, np.cumsum(size)) - np.append(0, np.cumsum(went)[:-1])
    whole = (went >= RELEASED * held) & (np.bincount(births, minlength=count + 1) > AT_MOST)
    # Few tensors of a recurrent layer's graph are freed; those seen in the graph belong to it.
    texts, names = e.card_ledger.texts, e.card_ledger.names[rows].tolist()
    saved = np.array([name != NO_NAME and is_graph_name(texts[name]) for name in names], bool)
    late = births - np.arange(count) > AT_MOST
    kept: Ints = rows[(births == count) | ((whole[births] | saved) & late)]
    return kept


def _inputs(e: Evidence, phase: int) -> Ints:
    """Return rows of a pass's inputs that were freed with its graph.

    Nothing else retained them.
    """
    card_ledger, a = e.card_ledger, e.card_ledger.allocations
    mine = _kept(e, phase)
    rows = np.flatnonzero(
        (card_ledger.category == Category.INPUTS) & (a.freed < card_ledger.events)
    )
    named = card_ledger.phases.named(card_ledger.born_in[rows], *BETWEEN)
    rows = rows[named & (card_ledger.born_in[rows] == phase - 1)]
    births = np.sort(a.allocated_at)
    alike = np.isin(np.searchsorted(births, a.freed[rows]), np.searchsorted(births, a.freed[mine]))
    gone: Ints = rows[alike]
    return gone


def _taken_back(e: Evidence, phase: int) -> bool:
    a, rows = e.card_ledger.allocations, _kept(e, phase)
    died = e.card_ledger.phases.named(e.card_ledger.phases.of(a.freed[rows]), "backward")
    return int(a.block[rows[died]].sum()) >= TAKEN_BACK * int(a.block[rows].sum()) > 0


def _freed(e: Evidence, passes: list[int], behind: int) -> Ints:
    """Return the bytes that would be free at each position without graphs.

    A tensor is then freed `behind` allocations after its own.
    """
    a, count = e.card_ledger.allocations, e.card_ledger.events
    change = np.zeros(count + 2, np.int64)
    for phase in passes:
        births = np.sort(a.allocated_at[e.card_ledger.born_in == phase])
        rows = _kept(e, phase)
        at = np.searchsorted(births, a.allocated_at[rows]) + behind
        gone = at < len(births)
        rows, until = rows[gone], births[at[gone]] + 1
        if behind == AT_LEAST and len(births):
            given = _inputs(e, phase)
            rows = np.append(rows, given)
            until = np.append(until, np.full(len(given), births[-1] + 1))
        np.subtract.at(change, until + 1, a.block[rows])
        np.add.at(change, a.freed[rows] + 1, a.block[rows])
    without: Ints = -np.cumsum(change)[: count + 1]
    return without


def _largest(e: Evidence, passes: list[int]) -> int:
    """Return the bytes of the largest tensors that one pass keeps."""
    a = e.card_ledger.allocations
    return max(int(np.sort(a.block[_kept(e, phase)])[-LARGEST:].sum()) for phase in passes)


def _during(e: Evidence, passes: list[int]) -> Ints:
    """Return the positions of some passes."""
    bounds = [e.card_ledger.bounds(e.card_ledger.phases.spans[phase][1]) for phase in passes]
    return np.concatenate([np.arange(first, last + 1) for first, last in bounds])


RULE = Rule(name="no_grad_missing", text=__doc__, check=check)
