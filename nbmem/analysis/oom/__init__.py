"""An out-of-memory error taken apart: what was asked, why it failed, what would have sufficed."""

from nbmem.analysis.oom.autopsy import autopsies

__all__ = ["autopsies"]
