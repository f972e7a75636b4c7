"""Another framework took most of the card at its first operation.

What it sees
    Where memory is short: JAX's pool is a quarter of the card or more, and at no reading did its
    arrays use half of it. Or TensorFlow was started, and a quarter of the card or more is held in
    this process by nobody who says so: TensorFlow does not say what its arena holds.
What it costs
    By default JAX takes 75% to 90% of the free memory at its first array, and TensorFlow nearly all
    of the card. Neither gives any of it back while the process lives.
Do instead
    Before JAX is imported: `XLA_PYTHON_CLIENT_PREALLOCATE=false`, or a share of the card with
    `XLA_PYTHON_CLIENT_MEM_FRACTION=.25`. Before TensorFlow's first operation:
    `tf.config.experimental.set_memory_growth(gpu, True)`. Then restart the kernel. Where it only
    reads data, hide the card from it: `JAX_PLATFORMS=cpu`, or
    `tf.config.set_visible_devices([], "GPU")`.
When to ignore it
    It will need the memory later: a pool that grows step by step is slower, and may fragment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import GIB
from nbmem.report.analysis.framework_advice import GROWTH, NO_PREALLOCATION
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt

if TYPE_CHECKING:
    from nbmem.core.session.frameworks import Share
    from nbmem.report.model import Finding
    from nbmem.report.tips.evidence import Evidence

OF_THE_CARD = 0.25
"""Part of the card that it must hold: a pool that grew by itself is as large as its use."""
MOST_USED = 0.5
"""Part of the pool that its arrays may use at most."""


def check(e: Evidence) -> Findings:
    """Find JAX's unused pool, and memory that TensorFlow does not report."""
    ledger = e.report.ledger_at_end
    least = OF_THE_CARD * ledger.total_bytes
    for share in ledger.owners:
        if share.name == "jax" and share.held >= least:
            yield from _jax(e, share)
        elif share.name == "tensorflow" and ledger.process_known:
            rest = ledger[Category.CONTEXT]
            if rest >= least:
                yield _finding(
                    f"TensorFlow's arena may be most of {fmt(rest)}: let it grow by need",
                    f"TensorFlow says that {fmt(share.held)} are in use, and not what its arena "
                    f"holds. {fmt(rest)} of this process are nobody's who says so; a context and "
                    "libraries alone take less than 1 GiB. By default TensorFlow takes nearly all "
                    "of the card at its first operation.",
                    rest - GIB,
                    GROWTH,
                )


def _jax(e: Evidence, share: Share) -> Findings:
    used = most_used(e, "jax")
    if used <= MOST_USED * share.held:
        yield _finding(
            f"JAX preallocated {fmt(share.held)} and uses {fmt(share.held - share.cached)}",
            f"Its pool holds {fmt(share.held)} of the card, and at no reading were more than "
            f"{fmt(used)} of it in use. Nothing of it goes back while the process lives.",
            share.held - used,
            NO_PREALLOCATION,
        )


def most_used(e: Evidence, name: str) -> int:
    """Return the most bytes that a framework's arrays ever used.

    It is the highest of all readings; 0 without readings.
    """
    readings = e.trace.owners
    if readings is None:
        return 0
    mine = np.array([name == text for text in e.session.names], bool)[readings.owner]
    return int(readings.used[mine].max(initial=0))


def _finding(title: str, evidence: str, saves: int, code: str) -> Finding:
    return RULE.finding(
        title=title,
        evidence=evidence,
        saves=estimated(saves),
        code=code,
    )


RULE = Rule(name="preallocated", text=__doc__, check=check, when="short")
