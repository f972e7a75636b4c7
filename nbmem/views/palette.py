"""Define one colour for each category, distinct for the colour-blind.

A category has one colour in all views. The hues are from Paul Tol's and Okabe and Ito's qualitative
sets. They were moved where two of the twelve live categories came too close in simulated
protanopia, deuteranopia or tritanopia. Memory outside the program's arrays is grey; hatching tells
those greys apart. A test measures these distances.
"""

from __future__ import annotations

from nbmem.core.session.categories import Category

COLOURS: dict[Category, str] = {
    Category.WEIGHTS: "#0072B2",
    Category.BUFFERS: "#88CCEE",
    Category.GRADIENTS: "#D55E00",
    Category.OPTIMIZER_STATE: "#F0C808",
    Category.INPUTS: "#332288",
    Category.ACTIVATIONS: "#44AA99",
    Category.OUTPUT_GRADIENTS: "#882255",
    Category.TEMPORARIES: "#E8D9A0",
    Category.WORKSPACE: "#EE8866",
    Category.COMMUNICATION: "#7E9DE6",
    Category.USER_TENSORS: "#BD4F6A",
    Category.UNKNOWN: "#594A0D",
    Category.ROUNDING: "#D0D0D0",
    Category.PENDING: "#8C7FB8",
    Category.CACHED_RELEASABLE: "#BCC3CA",
    Category.CACHED_STUCK: "#8A939C",
    Category.FRAMEWORKS: "#7C7D31",
    Category.FRAMEWORKS_CACHED: "#C6CF9E",
    Category.CONTEXT: "#5F6B76",
    Category.OTHER_PROCESSES: "#A59C92",
    Category.DRIVER: "#D9D2C8",
    Category.FREE: "#F4F4F2",
}

HATCHES: dict[Category, str] = {
    Category.ROUNDING: "#9A9A9A",
    Category.CACHED_RELEASABLE: "#8A939C",
    Category.CACHED_STUCK: "#5F6B76",
    Category.FRAMEWORKS_CACHED: "#7C7D31",
    Category.OTHER_PROCESSES: "#7C746B",
    Category.DRIVER: "#A59C92",
}
"""Colour of the diagonal lines drawn over a category's own colour."""

ALLOCATED = "#6A55E0"
"""Allocated bytes that a reading does not split into categories."""

INK = "#7E7E7E"
"""Text and lines of a picture without background: 4:1 on white and on JupyterLab's black."""

PHASE_TINTS: dict[str, str] = {
    "load": "#BFD3BA",
    "input": "#7FC4BC",
    "forward": "#B7CBE2",
    "backward": "#E2BFAD",
    "optimizer": "#DFD39A",
    "zero_grad": "#C9C9C9",
    "inference": "#CDC0E0",
}
OTHER_TINT = "#C9C9C9"
TINT_INK = "#2B2B2B"
"""Text on a phase's tint, and the background of the peak's label."""


def swatch_style(category: Category) -> str:
    """Return inline CSS that fills a box with a category's colour and hatch."""
    if category is Category.FREE:
        return "border:1px solid rgba(128,128,128,0.7)"
    ground, line = COLOURS[category], HATCHES.get(category)
    if line is None:
        return f"background-color:{ground}"
    # Only what JupyterLab's sanitizer allows: no repeating-linear-gradient, no url().
    stops = f"{line} 0%,{line} 25%,{ground} 25%,{ground} 50%,{line} 50%,{line} 75%,{ground} 75%"
    return f"background-image:linear-gradient(135deg,{stops});background-size:6px 6px"
