"""Find remedies for a failed request, each tried in the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import LOCAL, is_graph_name, is_place
from nbmem.core.units import format_bytes
from nbmem.report.analysis.framework_advice import framework_finding, releasable_bytes
from nbmem.report.analysis.oom.batch_estimate import batch
from nbmem.report.analysis.oom.continuations.continuation import (
    LIVE,
    Continuation,
    FutureBlock,
    cached_rows,
)
from nbmem.report.analysis.oom.continuations.recomputation import checkpointing
from nbmem.report.analysis.oom.live_groups import OUT, TRACEBACK, AllocationGroup
from nbmem.report.analysis.oom.program_changes.combined_changes import (
    combined_changes,
    same_batch,
)
from nbmem.report.analysis.oom.program_changes.evaluation import without_gradients
from nbmem.report.analysis.oom.program_changes.fused_attention import fused_attention
from nbmem.report.analysis.oom.program_changes.image_decoder import decoded_in_parts
from nbmem.report.analysis.oom.program_changes.kv_cache import offloaded_cache, unread_cache
from nbmem.report.analysis.oom.program_changes.last_scores import last_scores
from nbmem.report.analysis.oom.program_changes.loss_parts import loss_parts
from nbmem.report.analysis.oom.program_changes.pipeline_models import idle_models
from nbmem.report.analysis.oom.program_changes.smaller_weights import smaller_weights
from nbmem.report.analysis.oom.program_changes.trained_weights import (
    adapters,
    eight_bit_state,
    fused_step,
)
from nbmem.report.analysis.oom.program_changes.trainer_evaluation import (
    gathered_evaluation,
    is_in_evaluation,
)
from nbmem.report.analysis.oom.trial import Outcome, Trial, explained, kept_elsewhere
from nbmem.report.analysis.program_names import (
    code_name,
    is_expression,
    largest_optimizer,
    zero_grad_code,
)
from nbmem.report.analysis.what_if import with_conf
from nbmem.report.model import Command, Finding
from nbmem.report.savings import simulated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.oom.failed_request import FailedRequest

    Attempts = Iterator[tuple[Finding, Outcome | None]]

MAX_REMEDIES = 3
EXPANDABLE = "expandable_segments:True"
_FREE_WORDS = {TRACEBACK: "what an earlier failure left behind", OUT: "Out and _"}


def remedies(
    case: FailedRequest, held: Sequence[AllocationGroup], phase: str | None
) -> tuple[Finding, ...]:
    """Return at most three remedies that serve the request, the best first.

    They are those with which the program runs on, the least intrusive of them at the head. If there
    are none, they are those with which it runs for some more steps, the most steps first. Where
    no single one is enough, two or three together are tried. Where nothing is known of what
    follows, they serve this request. Beside a smaller batch alone, changes that keep the batch are
    tried together, too. One with which the simulator runs out
    again before the next step ends is no remedy.

    Args:
        case: The failed request.
        held: The rows live at that moment.
        phase: The phase of the request.
    """
    trial = Trial(case, held, phase)
    found: list[tuple[tuple[int, int], Finding]] = []
    for attempt in (*REMEDIES, combined_changes):
        if attempt is combined_changes and (
            not trial.known or any(finding.rule != "batch_size" for _, finding in found)
        ):
            break
        together = attempt is combined_changes and found
        for finding, outcome in same_batch(trial) if together else attempt(trial):
            if outcome is not None and not (trial.known and outcome.kind == "once"):
                found.append((outcome.place, explained(finding, outcome, trial)))
        if sum(place == (0, 0) for place, _ in found) >= MAX_REMEDIES:
            break
    found.sort(key=lambda one: (one[0], _is_only_joined(*one)))
    if found and found[0][0] == (0, 0):
        found = [one for one in found if one[0] == (0, 0)]
    return tuple(finding for _, finding in found[:MAX_REMEDIES])


def _is_only_joined(place: tuple[int, int], finding: Finding) -> bool:
    """Return whether a remedy joins free pieces for one request only.

    It comes last: what is computed of the request is often as large.
    """
    return finding.rule == "fragmentation" and place[0] == Outcome("once").place[0]


def _growth(trial: Trial) -> Attempts:
    then = trial.then
    cached = cached_rows(trial.case.card_ledger, trial.case.index)
    if not then.slope or is_in_evaluation(trial) or np.isin(then.grown, cached).any():
        return
    grown = np.array(then.grown, np.int64)
    sizes = {
        at: trial.bytes_of(np.intersect1d(group.rows, grown)) for at, group in enumerate(trial.held)
    }
    whole = [at for at, size in sizes.items() if 2 * size > trial.bytes_of(trial.held[at].rows)]
    requested = trial.case.card_ledger.allocations.requested
    rows = np.unique(np.concatenate([grown, *(trial.held[at].rows for at in whole)]))
    size, noun = trial.bytes_of(rows), trial.noun
    most = trial.held[max(sizes, key=sizes.__getitem__)].held
    if is_graph_name(most.name) or is_place(
        most.name
    ):  # a step of several forwards: nothing that can be kept elsewhere
        return
    name = f"`{most.name.removeprefix('local ')}`" if most.name else f"What {most.line} makes"
    outcome = trial.now(freed=rows.tolist(), then=kept_elsewhere(then, requested))
    names = (trial.case.card_ledger.name(row) for row in grown.tolist())
    if then.loop and most.name and any(map(is_graph_name, names)):
        yield _growing_graph(most.name, trial, size), outcome
        return
    yield (
        Finding(
            rule="grows_each_step",
            title=f"{name} grows by {format_bytes(then.slope)} {_article(noun)} and holds "
            f"{format_bytes(size)}: keep it on the CPU",
            evidence=f"With every {noun} more of it is left on the card.",
            **simulated(size),
        ),
        outcome,
    )


def _growing_graph(name: str, trial: Trial, size: int) -> Finding:
    """Name a variable whose graph gets longer with every iteration of a loop."""
    each = f"{format_bytes(trial.then.slope)} {_article(trial.noun)}"
    return Finding(
        rule="graph_kept",
        title=f"The graph of `{name}` grows by {each} and holds {format_bytes(size)}: detach it "
        "where no backward goes back so far",
        evidence=f"With every {trial.noun} the graph keeps more tensors on the card.",
        **simulated(size),
        code=f"{name} = {name}.detach()" if is_expression(name) else None,
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _limit(trial: Trial) -> Attempts:
    case = trial.case
    if not case.limited:
        return
    total = case.card_ledger.trace.info.total_bytes
    share = math.ceil(100 * (case.reserved + case.wanted) / total) / 100
    line = f"import torch\n\ntorch.cuda.set_per_process_memory_fraction({share:.2f})"
    yield (
        Finding(
            rule="memory_limit",
            title=f"Raise this process's memory limit by at least {format_bytes(case.missing)}",
            evidence=f"The card had {format_bytes(case.free)} free.",
            **simulated(case.missing),
            code=line if share < 1 else None,
        ),
        trial.now(capacity=case.reserved + case.free),
    )


def _expandable(trial: Trial) -> Attempts:
    case = trial.case
    if case.settings.expandable_segments:
        return
    conf = with_conf(case.card_ledger.trace, EXPANDABLE)
    yield (
        Finding(
            rule="fragmentation",
            title="Set expandable_segments:True, so that free pieces can be joined",
            evidence="Replayed from the start of the recording with it, the request is served.",
            **simulated(case.missing),
            code=f'import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{conf}"'
            "   # before torch touches the card",
        ),
        trial.again(conf=EXPANDABLE),
    )


def _names(trial: Trial) -> Attempts:
    named: dict[str, list[AllocationGroup]] = {}
    for group in trial.held:
        needless = group.held.older or group.held.category in (
            Category.USER_TENSORS,
            Category.UNKNOWN,
        )
        grows = np.isin(group.rows, trial.then.grown).any()
        if group.free is not None and needless and not grows:
            named.setdefault(group.free, []).append(group)
    rows = {name: np.concatenate([group.rows for group in parts]) for name, parts in named.items()}
    sizes = {name: trial.bytes_of(parts) for name, parts in rows.items()}
    outcomes: dict[str, Outcome] = {}
    for name in sorted(named, key=sizes.__getitem__):
        outcome = trial.now(freed=rows[name].tolist(), then=_without(trial, rows[name]))
        if outcome is not None:
            outcomes[name] = outcome
            if outcome.kind == "on":
                break
    if not outcomes:
        return
    # The least with which the program runs on, else the least that serves the request.
    name = min(outcomes, key=lambda one: outcomes[one].place)
    word = None if name in {group.held.name for group in named[name]} else name
    size, what = sizes[name], _FREE_WORDS.get(word or "", name.removeprefix(LOCAL))
    variables = tuple(what.split(", "))
    as_code = all(map(str.isidentifier, variables)) and word not in _FREE_WORDS
    own = name.startswith(LOCAL) or (word is None and name in _FREE_WORDS)
    elsewhere = f", or keep {'it' if len(variables) == 1 else 'them'} on the CPU" if as_code else ""
    found = Finding(
        rule="held_by_name",
        title=f"Free {' and '.join(variables)} before this line{elsewhere}: {format_bytes(size)}",
        evidence="With these blocks free at that moment, the request is served.",
        **simulated(size),
        code=f"del {what}" if as_code else None,
        command=None if own else Command(name="free", arguments=tuple(name.split(", "))),
    )
    yield found, outcomes[name]


def _without(trial: Trial, rows: Ints) -> Continuation:
    """Return what follows if some allocations do not come to the card again."""
    removed = {*rows.tolist()}
    return trial.then.changed(lambda b: None if b.requested_at != LIVE and b.row in removed else b)


def _gradients(trial: Trial) -> Attempts:
    rows = trial.rows(Category.GRADIENTS)
    if trial.phase not in ("input", "forward") or not len(rows):
        return
    size = trial.bytes_of(rows)
    yield (
        Finding(
            rule="gradients_kept",
            title=f"Let the gradients go before the forward: {format_bytes(size)}",
            evidence="They lived through it; without them the request is served. "
            "Not where gradients are accumulated over several batches.",
            **simulated(size),
            code=zero_grad_code(code_name(largest_optimizer(trial.case.card_ledger.session))),
        ),
        trial.now(freed=rows.tolist(), then=_zeroed(trial)),
    )


def _zeroed(trial: Trial) -> Continuation:
    """Return what follows if each step ends without gradients."""
    category, then = trial.case.card_ledger.category, trial.then

    def change(block: FutureBlock) -> FutureBlock:
        if block.requested_at == LIVE or block.row < 0 or category[block.row] != Category.GRADIENTS:
            return block
        return block._replace(freed_at=min(block.freed_at, then.end_of(block.step) - 0.5))

    return then.changed(change)


def _others(trial: Trial) -> Attempts:
    case = trial.case
    others = case.card_ledger.trace.other_processes
    size = sum(others.values())
    if not size or case.limited:
        return
    names = ", ".join(sorted(others, key=others.__getitem__, reverse=True)[:2])
    yield (
        Finding(
            rule="other_processes",
            title=f"End the other process on the card: {format_bytes(size)}",
            evidence=f"{names} holds it; with it free the request is served.",
            **simulated(size),
        ),
        trial.now(capacity=case.capacity + size),
    )


def _frameworks(trial: Trial) -> Attempts:
    case = trial.case
    for share in case.card_ledger.ledger(case.index).owners:
        size = releasable_bytes(share)
        if size and not case.limited:
            yield framework_finding(share, "simulated"), trial.now(capacity=case.capacity + size)


REMEDIES: tuple[Callable[[Trial], Attempts], ...] = (
    gathered_evaluation,
    unread_cache,
    decoded_in_parts,
    idle_models,
    _growth,
    _limit,
    _frameworks,
    _names,
    _gradients,
    without_gradients,
    _expandable,
    _others,
    smaller_weights,
    fused_step,
    fused_attention,
    last_scores,
    loss_parts,
    batch,
    offloaded_cache,
    checkpointing,
    eight_bit_state,
    adapters,
)
