"""Pooling."""

from __future__ import annotations

from nbmem.virtual.operators.operator import Operator
from nbmem.virtual.tensors.shapes import like

OPERATORS = (Operator(("fractional_max_pool3d_backward",), shape=like("self")),)
