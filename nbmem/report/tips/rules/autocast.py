"""Float32 activations where autocast would do.

What it sees
    Float32 weights, no autocast in any forward, and activations that are a third of the peak or
    more, where memory is short. Activations in half precision show that autocast is on inside, as
    where Accelerate or Trainer wraps `forward`.
What it costs
    Matrix products and convolutions keep results in half the bytes under autocast; normalization,
    softmax and losses stay in float32.
Do instead
    `with torch.autocast("cuda", dtype=torch.bfloat16):` around forward and loss. Cards before
    Ampere have no bfloat16: use float16 with a GradScaler.
When to ignore it
    Your model needs float32 (some physics, some losses), or it is mostly weights: autocast keeps
    the float32 weights and adds half-size copies while it runs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.analysis.what_if import try_settings
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt, fmt_range

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 1 / 3
LEAST_PART = 0.4
"""Part of the activations' bytes that is saved at least: some operators stay in float32."""
AMPERE = (8, 0)
HALF = re.compile(r"\) b?float16\b")
SOME = 0.05
"""Part of the named activations' bytes that shows autocast."""


def check(e: Evidence) -> Findings:
    """Replay with half the bytes of activations and their gradients."""
    model = e.model()
    if model is None or any(c["autocast"] for c in e.calls) or e.trains is False:
        return
    if model["float32_bytes"] < model["bytes"]:
        return
    kept = e.report.ledger_at_peak[Category.ACTIVATIONS]
    if not e.dominates(kept, SHARE):
        return
    if _has_half(e):
        return
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    halved = np.isin(card_ledger.category, (Category.ACTIVATIONS, Category.OUTPUT_GRADIENTS))
    rows = np.flatnonzero(halved & (a.allocated_at >= 0))
    sizes = {int(a.allocated_at[row]): max(1, int(a.requested[row]) // 2) for row in rows.tolist()}
    now, then = try_settings(card_ledger), try_settings(card_ledger, resized=sizes)
    copies = int(model["float32_bytes"]) // 2
    most = now.peak_allocated - then.peak_allocated
    low, high = max(0, int(LEAST_PART * most) - copies), most
    if not e.worth(high):
        return
    bfloat = e.trace.info.capability is None or e.trace.info.capability >= AMPERE
    dtype = "bfloat16" if bfloat else "float16"
    yield RULE.finding(
        title=f"Autocast to {dtype}: {fmt_range(low, high)} less at the peak",
        evidence=f"Activations are {fmt(kept)} of the {fmt(e.report.peak.allocated)} allocated at "
        f"the peak, in float32. Replayed with half of their bytes the peak is "
        f"{fmt(then.peak_allocated)}; operators that stay in float32 and {fmt(copies)} of weights "
        "in half their bytes take some of it back.",
        saves=estimated(low, high),
        code=_code(e.model_code(), dtype),
    )


def _has_half(e: Evidence) -> bool:
    """Return whether activations at the peak are in half precision already.

    A call is recorded at its end. There, an autocast inside of `forward` is over.
    """
    a, card_ledger = e.card_ledger.allocations, e.card_ledger
    rows = card_ledger.live(e.report.peak.at.event)
    rows = rows[card_ledger.category[rows] == Category.ACTIVATIONS]
    sizes = {row: int(a.requested[row]) for row in rows.tolist()}
    half = sum(size for row, size in sizes.items() if HALF.search(e.card_ledger.name(row) or ""))
    return half > SOME * sum(sizes.values())


def _code(model: str | None, dtype: str) -> str | None:
    """Return code that runs the model under autocast, or None.

    None if the notebook has no name for the model.
    """
    if model is None:
        return None
    scaler = "" if dtype == "bfloat16" else (
        "\n# float16 needs a scaler around backward and step: torch.amp.GradScaler()"
    )  # fmt: skip
    return (
        f'import torch\n\n{model}.forward = torch.autocast("cuda", dtype=torch.{dtype})'
        f"({model}.forward){scaler}"
    )


RULE = Rule(name="autocast", text=__doc__, check=check, when="short", has_price=True)
