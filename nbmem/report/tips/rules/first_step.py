"""The first optimizer step will add the optimizer's state.

What it sees
    A backward, and an optimizer that has no state yet: Adam and its kind make two tensors for each
    parameter at their first step, SGD with momentum one.
What it costs
    The state stays for good, so the second iteration needs that much more than the first; a batch
    that just fits before the first step does not fit behind it.
Do instead
    Choose the batch after one whole iteration. If it will not fit: an optimizer with less state
    (`%nbmem explain optimizer_state`).
When to ignore it
    The card has room for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.report.analysis.optimizer_state import state_sizes
from nbmem.report.analysis.program_names import code_name
from nbmem.report.analysis.what_if import try_more
from nbmem.report.tips.rule import Findings, Rule, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def check(e: Evidence) -> Findings:
    """Find optimizers that have gradients and never stepped."""
    if not e.phases("backward"):
        return
    for optimizer in e.optimizers:
        sizes = state_sizes(optimizer)
        if optimizer["states"] or not sizes or not any(optimizer["with_gradient"]):
            continue
        adds, takes = try_more(e.card_ledger, sizes)
        if not e.worth(adds):
            continue
        free = e.report.ledger_at_end.total_bytes - e.report.ledger_at_end.used
        room = "" if not e.card_known or takes <= free else " The card has no room for it as it is."
        name = code_name(optimizer)
        yield RULE.finding(
            title=f"The first `{name or 'optimizer'}.step()` will add {fmt(adds)} of state that "
            "stays",
            evidence=f"{optimizer['class']} has no state yet for {len(optimizer['parameters'])} "
            f"parameters; it makes {len(sizes)} tensors at its first step, for which torch takes "
            f"{fmt(takes)} from the driver.{room}",
            saves=simulated(adds),
            code=f"{name}.step()   # once, before you choose the batch" if name else None,
        )


RULE = Rule(name="first_step", text=__doc__, check=check)
