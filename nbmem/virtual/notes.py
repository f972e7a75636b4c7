"""The category of the warnings that say once what a virtual card cannot answer."""

from __future__ import annotations


class NbmemWarning(UserWarning):
    """Something here is not as it would be on a real card."""


VALUES = (
    "This is a virtual GPU: tensors on it have shapes and take memory, but no values are computed. "
    "What the program reads from the card (.item(), .cpu(), print) are plausible stand-ins."
)
SHAPES = (
    "A shape here depends on values, which a virtual GPU does not compute: the largest possible "
    "shape is assumed, so memory from here on is an upper bound."
)
COMPILE = (
    "torch.compile runs eagerly on a virtual GPU: Inductor's memory plan is not modelled, so the "
    "figures are those of eager mode."
)
