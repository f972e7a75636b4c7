"""Keep activations in host memory, as a last resort.

What it sees
    Activations that are half of the peak or more, where memory is short.
What it costs
    Every activation travels to the host and back in each step, over PCIe: the bytes are named. What
    two operators save travels twice (a ReLU's output that a convolution takes), so they are the
    least. A step becomes as slow as that transfer where it cannot hide it.
Do instead
    A smaller batch, autocast or checkpointing first. Then `save_on_cpu`. With unified memory
    (cudaMallocManaged) the driver pages what does not fit, which may be less where little is
    missing, and is slower the more it is: `%%nbmem plan` says what each would move.
When to ignore it
    One of the others suffices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.interconnect import link_of
from nbmem.core.session.categories import Category
from nbmem.core.units import format_ms
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.5
ROOM = 0.5
"""Part of the card below which a training that went on after an error has room."""
LEAST_PART = 0.5
"""Part of the activations that is saved at least: an operator's current tensors stay on the
card."""


def check(e: Evidence) -> Findings:
    """Propose to offload the activations at the peak, with its cost."""
    kept = e.report.ledger_at_peak[Category.ACTIVATIONS]
    if _has_room_since(e) and not e.everything:
        return
    if not e.dominates(kept, SHARE) or not e.phases("backward", "forward"):
        return
    yield RULE.finding(
        title=f"Keep activations in host memory: {fmt_range(int(LEAST_PART * kept), kept)} "
        "less, for "
        f"at least {fmt(2 * kept)} of transfers in each step",
        evidence=f"Activations are {fmt(kept)} of the {fmt(e.report.peak.allocated)} allocated at "
        f"the peak.{_way(e, 2 * kept)}",
        saves=estimated(int(LEAST_PART * kept), kept),
        code=_code(e.model_code()),
    )


def _has_room_since(e: Evidence) -> bool:
    """Return whether training took half of the card after it had failed.

    A search for the largest batch goes on with a smaller one.
    """
    card_ledger = e.card_ledger
    last = max(card_ledger.refused.failed, default=card_ledger.events)
    spans = [span for _, span in card_ledger.phases.spans if card_ledger.bounds(span)[0] > last]
    if "backward" not in {span.name for span in spans}:
        return False
    # what the failed one held is freed by the time when the next batch comes
    anew = [span for span in spans if span.name in ("input", "forward")] or spans
    begins = card_ledger.bounds(anew[0])[0]
    return int(card_ledger.allocated[begins:].max()) < ROOM * e.trace.info.total_bytes


def _way(e: Evidence, count: int) -> str:
    """Return how long a transfer takes over the card's bus, as a sentence.

    Empty if the card is not known.
    """
    link = link_of(e.trace.info.capability)
    if link is None:
        return ""
    return (
        " To the host and back they take about "
        f"{format_ms(round(1e9 * count / link.rate))} in each step "
        f"over {link.name} with 16 lanes."
    )


def _code(model: str | None) -> str | None:
    """Return code that runs the model under save_on_cpu, or None.

    None if the notebook has no name for the model.
    """
    if model is None:
        return None
    return (
        "import torch\n\nforward = " + model + ".forward\n\n"
        "def on_the_host(*args, **kwargs):\n"
        "    with torch.autograd.graph.save_on_cpu(pin_memory=True):\n"
        "        return forward(*args, **kwargs)\n\n"
        f"{model}.forward = on_the_host"
    )


RULE = Rule(name="offload", text=__doc__, check=check, when="short", last_resort=True)
