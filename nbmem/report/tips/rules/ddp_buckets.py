"""DistributedDataParallel keeps its buckets beside the gradients.

What it sees
    A DistributedDataParallel module with gradient_as_bucket_view=False whose gradients are a tenth
    of the peak, or memory is short.
What it costs
    The gradients twice: once as .grad, once in the buckets that are reduced.
Do instead
    `DistributedDataParallel(model, gradient_as_bucket_view=True)`.
When to ignore it
    You call detach_() on gradients, which views of a bucket do not allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.report.analysis.program_names import code_name
from nbmem.report.tips.rule import Findings, Rule, estimated, fmt

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

SHARE = 0.1


def check(e: Evidence) -> Findings:
    """Find DDP modules whose buckets are as large as the gradients."""
    for module in e.modules:
        if module.get("gradient_as_bucket_view") is not False or not module.get("called"):
            continue
        seen = max(
            (row.ledger_at_end[Category.GRADIENTS] for row in e.phases("backward")), default=0
        )
        size = min(seen, int(module["bytes"]))
        if e.dominates(size, SHARE) or (e.worth(size) and (e.short or e.everything)):
            yield RULE.finding(
                title=f"`gradient_as_bucket_view=True` in DDP: about {fmt(size)} less",
                evidence=f"{module['name']} keeps buckets of {fmt(size)} beside gradients of the "
                "same bytes; as views of the buckets the gradients take no memory of their own.",
                saves=estimated(size),
                code=_code(code_name(module)),
            )


def _code(name: str | None) -> str | None:
    """Return code that wraps the same module anew, or None.

    None if the notebook has no name for it.
    """
    if name is None:
        return None
    return (
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        f"{name} = DistributedDataParallel(\n    {name}.module, device_ids={name}.device_ids, "
        "gradient_as_bucket_view=True\n)"
    )


RULE = Rule(name="ddp_buckets", text=__doc__, check=check)
