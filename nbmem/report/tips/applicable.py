"""Name the tips whose change can be tried on a virtual card, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.report.model import Finding

REMEDY_OF = {
    "autocast": "autocast",
    "checkpointing": "checkpoint",
    "fragmentation": "expandable",
    "inplace_activations": "inplace",
    "offload": "offload",
}
"""Remedies of `plan` (their keys) that do what a tip says."""
KEPT_AS = {"graph_kept": "detach()", "grows_each_step": "detach().cpu()"}
"""Calls by which the line that adds to a growing variable is mended."""


def can_be_tried(finding: Finding) -> bool:
    """Return whether `%nbmem try` knows how to apply a tip."""
    by_batch = finding.rule == "batch_size" and finding.code is not None
    return by_batch or finding.rule in REMEDY_OF or finding.rule in KEPT_AS
