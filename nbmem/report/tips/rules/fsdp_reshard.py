"""FSDP frees the last block after forward, then gathers it for backward.

What it sees
    FSDP2 units whose parameters are freed at the end of every forward and are the first that the
    backward behind it gathers again, where the peak would not be higher if they stayed. It is told
    only to those who ask for all tips: it is what FSDP does by default.
What it costs
    One all-gather of the unit in each pass, for which backward waits.
Do instead
    `block.set_reshard_after_forward(False)` for the last block, or
    `fully_shard(block, reshard_after_forward=False)`.
When to ignore it
    Evaluation calls the model without a backward, too: there the block stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.report.analysis.fsdp_gathers import Gather, Move, allocated_with, find_gathers
from nbmem.report.analysis.program_names import blocks_of
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find the unit that every pass frees and gathers again."""
    passes = list(_passes(e))
    units = {
        last.unit for last, first in passes if first is not None and _is_same_group(e, last, first)
    }
    if len(units) != 1 or any(f is None or not _is_same_group(e, last, f) for last, f in passes):
        return
    unit, a = units.pop(), e.card_ledger.allocations
    low, high = (
        int(e.card_ledger.allocated.max()),
        int(allocated_with(e.card_ledger, _moves_if_kept(e, passes)).max()),
    )
    size = int(a.requested[passes[-1][0].buffer])
    if high > low or not e.worth(size):
        return
    brings = f"{fmt(low - high)} less at the peak" if high < low else "the peak stays"
    yield RULE.finding(
        title=f"Keep {unit} whole after forward: an all-gather of {fmt(size)} less in each pass, "
        f"and {brings}",
        evidence=f"The last unit of forward is freed and is the first that backward gathers: "
        f"{len(passes)} times. Kept, its {fmt(size)} lie there while the loss is computed; "
        f"the peak is {fmt(high)} with them, {fmt(low)} now.",
        saves=simulated(low - high),
        code=_code(e, unit),
    )


def _passes(e: Evidence) -> Iterator[tuple[Gather, Gather | None]]:
    """Yield each forward's last unit and the next backward's first one."""
    spans = [span for _, span in e.card_ledger.phases.spans]
    by_phase: dict[int, list[Gather]] = {}
    for gather in find_gathers(e.card_ledger):
        by_phase.setdefault(gather.phase, []).append(gather)
    phases = sorted(by_phase)
    for at, phase in enumerate(phases):
        if spans[phase].name == "backward":
            continue
        last, behind = by_phase[phase][-1], phases[at + 1 : at + 2]
        backward = [p for p in behind if spans[p].name == "backward"]
        forward = spans[phase].name == "forward"
        yield last, by_phase[backward[0]][0] if backward and forward else None


def _is_same_group(e: Evidence, last: Gather, first: Gather | None) -> bool:
    """Return whether the same parameters were freed and gathered again."""
    a = e.card_ledger.allocations
    return (
        first is not None
        and first.unit == last.unit
        and a.block[list(first.whole)].tolist() == a.block[list(last.whole)].tolist()
        and int(a.freed[list(last.whole)].max()) < int(a.allocated_at[first.buffer])
    )


def _moves_if_kept(e: Evidence, passes: list[tuple[Gather, Gather | None]]) -> Iterator[Move]:
    """Yield the moves that keep the first copies and drop the second.

    The first copies are live as long as the second, which are not made.
    """
    a = e.card_ledger.allocations
    for last, first in passes:
        if first is not None:
            yield Move(first.buffer)
            for kept, again in zip(last.whole, first.whole, strict=True):
                yield Move(kept, int(a.allocated_at[kept]), int(a.freed[again]))
                yield Move(again)


def _code(e: Evidence, unit: str) -> str | None:
    """Return code that keeps the module of a unit whole, or None.

    None if its path is not known.
    """
    for module in sorted(e.modules, key=lambda m: -int(m["bytes"])):
        before = f"{module['name']}."
        inside = [p for p in module.get("fsdp_paths") or [] if f"{unit}.".startswith(before + p)]
        if inside and max(inside, key=len):
            block = blocks_of(module, max(inside, key=len))
            return None if block is None else f"{block}.set_reshard_after_forward(False)"
    return None


RULE = Rule(name="fsdp_reshard", text=__doc__, check=check, when="asked", last_resort=True)
