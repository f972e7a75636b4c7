"""Try two or three changes together, where no single one is enough.

A language model's step may need its scores in parts and its activations computed again: each alone
leaves what the other would have taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from nbmem.core.units import format_range
from nbmem.report.analysis.oom.batch_estimate import batch
from nbmem.report.analysis.oom.continuations.recomputation import checkpointing
from nbmem.report.analysis.oom.program_changes.fused_attention import fused_attention
from nbmem.report.analysis.oom.program_changes.loss_parts import loss_parts
from nbmem.report.analysis.oom.program_changes.trained_weights import eight_bit_state
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.trial import Outcome, Trial

    Attempts = Iterator[tuple[Finding, Outcome | None]]
    Attempt = Callable[[Trial], Attempts]

CHANGES: tuple[Attempt, ...] = (
    fused_attention,
    loss_parts,
    checkpointing,
    eight_bit_state,
    batch,
)
"""The changes that are combined, in the order in which they are made; a batch comes last."""
SIZES = (2, 3)
MAX_FOUND = 2
"""Combinations that are told."""


def combined_changes(trial: Trial, changes: Sequence[Attempt] = CHANGES) -> Attempts:
    """Yield pairs of changes with which the program runs on.

    Three changes together are tried only where no two are enough.
    """
    for size in SIZES:
        found = 0
        for attempts in combinations(changes, size):
            for one in _together(trial, attempts):
                yield one
                found += 1
            if found >= MAX_FOUND:
                break
        if found:
            return


def same_batch(trial: Trial) -> Attempts:
    """Yield two or three changes with which the whole batch runs on."""
    yield from combined_changes(trial, CHANGES[:-1])


def _together(trial: Trial, attempts: Sequence[Attempt]) -> Attempts:
    """Yield some changes as one remedy, if the program runs on with all."""
    *firsts, last = attempts
    findings: list[Finding] = []
    for attempt in firsts:
        made = next(attempt(trial), None)
        if made is None or trial.change is None:
            return
        findings.append(made[0])
        trial = trial.after(trial.change)
    for finding, outcome in last(trial):
        if outcome is not None and outcome.kind == "on":
            yield _joined([*findings, finding]), outcome


def _joined(parts: Sequence[Finding]) -> Finding:
    """Return one remedy that says all parts and has the lines of each."""
    low, high = sum(part.low for part in parts), sum(part.high for part in parts)
    first, *others = (part.title.partition(": about ")[0] for part in parts)
    changes = " and ".join([first, *(f"{text[:1].lower()}{text[1:]}" for text in others)])
    codes = [part.code for part in parts]
    return Finding(
        rule="combined",
        title=f"{changes}, together: about {format_range(low, high)} less",
        evidence="In the simulator each of these alone runs out again. "
        + " ".join(part.evidence for part in parts if part.rule != "batch_size"),
        **estimated(low, high),
        code=None if None in codes else "\n\n".join(code for code in codes if code),
    )
