"""Try activation checkpointing on a failed step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import module_in_any_name
from nbmem.core.units import format_bytes
from nbmem.report.analysis.block_activations import block_activations
from nbmem.report.analysis.library_calls import checkpointing_call
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER
from nbmem.report.analysis.program_names import blocks_of, checkpoint_code, trained_model
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.analysis.block_activations import BlockActivations
    from nbmem.report.analysis.oom.continuations.continuation import Continuation, FutureBlock
    from nbmem.report.analysis.oom.trial import Outcome, Trial

MIN_ACTIVATIONS = 4
"""Activations below which there is nothing to compute again."""


def checkpointing(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield checkpointing, with activations computed again block by block."""
    seen = trial.case.refusal
    rows = _rows(trial)
    model = trained_model(trial.case.card_ledger.session)
    if (
        trial.phase not in ("forward", "backward")
        or (seen is not None and seen.evaluating)
        or len(rows) < MIN_ACTIVATIONS
    ):
        return
    named = None if model is None else block_activations(trial.case.card_ledger, model)
    code = _code(model) if named is None else named.code
    length = math.ceil(math.sqrt(len(rows))) if named is None else _length(named)
    a = trial.case.card_ledger.allocations
    largest = NEVER if named is None else int(a.requested[named.rows].max())
    then, freed = _recomputed(trial.then, rows.tolist(), length, largest)
    size = int(a.block[freed].sum())
    where = f"blocks of about {length} layers" if named is None else f"each {named.kind}"
    yield (
        Finding(
            rule="checkpointing",
            title=f"Compute activations again in backward: about {format_bytes(size)}",
            evidence=f"With a checkpoint around {where} the request is served; the forward is then "
            "computed twice.",
            **estimated(size),
            code=code,
        ),
        trial.now(freed=freed, then=then),
    )


def _rows(trial: Trial) -> Ints:
    """Return the step's activations, but for those of modules in eval mode.

    Libraries checkpoint in training mode alone; a teacher's activations wait for no backward.
    """
    ledger = trial.case.card_ledger
    modules = ledger.session.facts.get("modules") or []
    others = tuple(f"{one['name']}." for one in modules if not one.get("training", True))
    rows = trial.new_rows(Category.ACTIVATIONS)
    if not others:
        return rows
    places = [module_in_any_name(ledger.name(row) or "") or "" for row in rows.tolist()]
    own = np.array([not f"{place}.".startswith(others) for place in places], bool)
    found: Ints = rows[own]
    return found


def _length(named: BlockActivations) -> int:
    """Return how many activations a block has, at least two."""
    return max(2, math.ceil(float(np.median([len(rows) for rows in named.blocks]))))


def _recomputed(
    then: Continuation, rows: list[int], length: int, largest: float
) -> tuple[Continuation, list[int]]:
    """Return what follows with checkpoints, and what is free already.

    Of a step's activations, blocks of some length keep their first one. The others are freed two
    activations later, and allocated again when the backward comes to their block.

    Args:
        then: What follows without checkpoints.
        rows: The live activations of the failing step.
        length: Activations of one block.
        largest: Bytes of the largest activation in a block: larger ones are outside of the blocks,
            as a language model's scores are.
    """
    live = {*rows}
    steps: dict[int, list[int]] = {}
    for at, block in enumerate(then.blocks):
        if block.saved and (block.requested_at != LIVE or block.row in live):
            steps.setdefault(block.step, []).append(at)
    blocks: list[FutureBlock | None] = list(then.blocks)
    extra: list[FutureBlock] = []
    freed: list[int] = []
    for of_step in steps.values():
        for first in range(0, len(of_step), length):
            members = of_step[first : first + length]
            back = min(then.blocks[at].freed_at for at in members)
            for number, at in enumerate(members[1:], first + 1):
                block = then.blocks[at]
                if block.size > largest or block.behind:
                    continue
                later = of_step[number + 2 : number + 3]
                freed_at = then.blocks[later[0]].requested_at + 0.25 if later else back
                if freed_at >= block.freed_at or back <= block.requested_at:
                    continue
                if freed_at == LIVE + 0.25:
                    freed.append(block.row)
                    blocks[at] = None
                else:
                    blocks[at] = block._replace(freed_at=freed_at)
                if back != NEVER:
                    extra.append(block._replace(requested_at=back - 0.25, freed_at=block.freed_at))
    kept = [block for block in blocks if block is not None]
    return then.changed_to((*kept, *extra)), freed


def _code(model: dict[str, Any] | None) -> str | None:
    """Return code that checkpoints a model's longest list of equal blocks.

    None if it has no such list, or if the program has no name for it.
    """
    lists = model["blocks"] if model is not None else []
    longest = max(lists, key=lambda block: int(block["count"]), default=None)
    if longest is None:
        return None
    path = str(longest["path"])
    return checkpointing_call(model, path) or checkpoint_code(blocks_of(model, path))
