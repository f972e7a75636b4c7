"""Find remedies for a failed request, each tried in the simulator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.framework_advice import framework_finding, releasable_bytes
from nbmem.report.analysis.oom.batch_estimate import batch
from nbmem.report.analysis.oom.live_groups import OUT, TRACEBACK
from nbmem.report.analysis.oom.request_replay import FailureReplay, served_now
from nbmem.report.analysis.oom.trial import Trial
from nbmem.report.analysis.program_names import (
    blocks_of,
    checkpoint_code,
    code_name,
    largest_model,
    largest_optimizer,
    no_grad_code,
    zero_grad_code,
)
from nbmem.report.analysis.what_if import with_conf
from nbmem.report.model import Command, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.live_groups import AllocationGroup

MOST = 3
EXPANDABLE = "expandable_segments:True"
_FREE_WORDS = {TRACEBACK: "what an earlier failure left behind", OUT: "Out and _"}


def remedies(
    case: FailedRequest, held: Sequence[AllocationGroup], phase: str | None
) -> tuple[Finding, ...]:
    """Return at most three remedies, the least intrusive first.

    Args:
        case: The failed request.
        held: The rows live at that moment.
        phase: The phase of the request.
    """
    trial = Trial(case, held, phase, FailureReplay(case))
    found: list[Finding] = []
    for attempt in REMEDIES:
        found += attempt(trial)
        if len(found) >= MOST:
            break
    return tuple(found[:MOST])


def _limit(trial: Trial) -> Iterator[Finding]:
    case = trial.case
    room = case.reserved + case.free
    if not case.limited or not served_now(case, capacity=room):
        return
    total = case.card_ledger.trace.info.total_bytes
    share = math.ceil(100 * (case.reserved + case.wanted) / total) / 100
    line = f"import torch\n\ntorch.cuda.set_per_process_memory_fraction({share:.2f})"
    yield Finding(
        rule="memory_limit",
        title=f"Raise this process's memory limit by at least {format_bytes(case.missing)}",
        evidence=f"The card had {format_bytes(case.free)} free: without the limit it is served.",
        low=case.missing,
        high=case.missing,
        ground="simulated",
        code=line if share < 1 else None,
    )


def _expandable(trial: Trial) -> Iterator[Finding]:
    case = trial.case
    if case.settings.expandable_segments or not trial.rerun.served(conf=EXPANDABLE):
        return
    conf = with_conf(case.card_ledger.trace, EXPANDABLE)
    yield Finding(
        rule="fragmentation",
        title="Set expandable_segments:True, so that free pieces can be joined",
        evidence="Replayed from the start of the recording with it, the request is served.",
        low=case.missing,
        high=case.missing,
        ground="simulated",
        code=f'import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "{conf}"'
        "   # before torch touches the card",
    )


def _names(trial: Trial) -> Iterator[Finding]:
    named: dict[str, list[AllocationGroup]] = {}
    for group in trial.held:
        needless = group.held.older or group.held.category in (
            Category.USER_TENSORS,
            Category.UNKNOWN,
        )
        if group.free is not None and needless:
            named.setdefault(group.free, []).append(group)
    rows = {name: np.concatenate([group.rows for group in mine]) for name, mine in named.items()}
    sizes = {name: trial.bytes_of(mine) for name, mine in rows.items()}
    for name in sorted(named, key=sizes.__getitem__):
        freed = rows[name]
        if served_now(trial.case, freed=freed):
            size, what = sizes[name], name
            if name in _FREE_WORDS:
                what = _FREE_WORDS[name]
            yield Finding(
                rule="held_by_name",
                title=f"Free {what} before this line: {format_bytes(size)}",
                evidence="With its blocks free at that moment, the request is served.",
                low=size,
                high=size,
                ground="simulated",
                code=f"del {name}" if name.isidentifier() and what is name else None,
                command=Command(name="free", arguments=(name,)),
            )
            return


def _gradients(trial: Trial) -> Iterator[Finding]:
    rows = trial.rows(Category.GRADIENTS)
    if trial.phase not in ("input", "forward") or not len(rows):
        return
    if served_now(trial.case, freed=rows):
        size = trial.bytes_of(rows)
        yield Finding(
            rule="gradients_kept",
            title=f"Let the gradients go before the forward: {format_bytes(size)}",
            evidence="They lived through it; without them the request is served. "
            "Not where gradients are accumulated over several batches.",
            low=size,
            high=size,
            ground="simulated",
            code=zero_grad_code(code_name(largest_optimizer(trial.case.card_ledger.session))),
        )


def _inference(trial: Trial) -> Iterator[Finding]:
    seen = trial.case.refusal
    rows = trial.new_rows(Category.ACTIVATIONS)[:-2]  # a layer's input and output are needed
    if seen is None or not seen.evaluating or not len(rows):
        return
    if served_now(trial.case, freed=rows):
        size = trial.bytes_of(rows)
        yield Finding(
            rule="no_grad",
            title=f"Evaluate without gradients: about {format_bytes(size)}",
            evidence="The model is in eval mode, and its activations are kept for a backward. "
            "Without them the request is served.",
            low=size,
            high=size,
            ground="estimated",
            code=no_grad_code(code_name(largest_model(trial.case.card_ledger.session))),
        )


def _others(trial: Trial) -> Iterator[Finding]:
    case = trial.case
    others = case.card_ledger.trace.other_processes
    size = sum(others.values())
    if not size or case.limited or not served_now(case, capacity=case.capacity + size):
        return
    names = ", ".join(sorted(others, key=others.__getitem__, reverse=True)[:2])
    yield Finding(
        rule="other_processes",
        title=f"End the other process on the card: {format_bytes(size)}",
        evidence=f"{names} holds it; with it free the request is served.",
        low=size,
        high=size,
        ground="simulated",
    )


def _frameworks(trial: Trial) -> Iterator[Finding]:
    case = trial.case
    for share in case.card_ledger.ledger(case.index).owners:
        size = releasable_bytes(share)
        if size and not case.limited and served_now(case, capacity=case.capacity + size):
            yield framework_finding(share, "simulated")


def _checkpointing(trial: Trial) -> Iterator[Finding]:
    seen = trial.case.refusal
    rows = trial.new_rows(Category.ACTIVATIONS)
    if trial.phase != "forward" or (seen is not None and seen.evaluating) or len(rows) < 4:
        return
    # Of n activations, blocks of sqrt(n) keep their inputs, and one block is computed again.
    block = math.ceil(math.sqrt(len(rows)))
    kept = np.zeros(len(rows), bool)
    kept[::block] = True
    kept[-block:] = True
    if served_now(trial.case, freed=rows[~kept]):
        size = trial.bytes_of(rows[~kept])
        yield Finding(
            rule="checkpointing",
            title=f"Compute activations again in backward: about {format_bytes(size)}",
            evidence=f"With checkpoints around blocks of about {block} layers the request is "
            "served; the forward is then computed twice.",
            low=size,
            high=size,
            ground="estimated",
            code=checkpoint_code(_blocks(largest_model(trial.case.card_ledger.session))),
        )


def _blocks(model: dict[str, Any] | None) -> str | None:
    """Return the code for a model's longest list of equal blocks, or None."""
    lists = model["blocks"] if model is not None else []
    longest = max(lists, key=lambda block: int(block["count"]), default=None)
    return None if longest is None else blocks_of(model, str(longest["path"]))


REMEDIES: tuple[Callable[[Trial], Iterator[Finding]], ...] = (
    _limit,
    _frameworks,
    _names,
    _gradients,
    _inference,
    _expandable,
    _others,
    batch,
    _checkpointing,
)
