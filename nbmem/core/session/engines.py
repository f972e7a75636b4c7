"""Engines: what makes the figures of a virtual card."""

from __future__ import annotations

RULES, TORCH = "rules", "torch"
"""nbmem.virtual, which imitates torch operator by operator; torch's own CUDA build on a driver that
is not there (nbmem.engine)."""
