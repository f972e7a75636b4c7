"""Bytes that optimizers of torch.optim allocate at their first step."""

from __future__ import annotations

from math import prod
from typing import Any

COPIES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "RMSprop": 1}
"""State tensors of a parameter's shape that torch.optim makes at the first step.

https://github.com/pytorch/pytorch/tree/v2.13.0/torch/optim, `_init_group` of each
"""
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch.optim with an implementation in one kernel, which has no temporaries."""
STEP_BYTES = 4
"""The step counter of a fused or capturable optimizer is on the card; others are on the CPU."""


def can_be_fused(optimizer: dict[str, Any]) -> bool:
    """Return whether an optimizer steps otherwise than it could."""
    switches = optimizer["switches"]
    known = optimizer["torch"] and optimizer["class"] in FUSED
    return bool(known and not switches.get("fused") and not switches.get("differentiable"))


def fused_code(name: str, optimizer: dict[str, Any]) -> str:
    """Return the code that makes an optimizer anew, with fused=True."""
    return (
        "import torch\n\n"
        f'groups = [{{**g, "fused": True, "foreach": False}} for g in {name}.param_groups]\n'
        f"{name} = torch.optim.{optimizer['class']}(groups, fused=True)"
        "   # before the first step: its state begins anew"
    )


def state_sizes(optimizer: dict[str, Any], *, every: bool = False) -> list[int]:
    """Return the bytes of each tensor that the first step makes and keeps.

    In order; empty if not known.

    Args:
        optimizer: One of the session's fact `optimizers`.
        every: Whether all parameters count, also those without a gradient as yet.
    """
    kind, switches = optimizer["class"], optimizer["switches"]
    if not optimizer["torch"]:
        return []
    sizes = []
    for size, shape, wanted in zip(
        optimizer["parameters"], optimizer["shapes"], optimizer["with_gradient"], strict=True
    ):
        if not (wanted or every):
            continue
        if kind == "SGD":
            sizes += [size] if switches.get("momentum") else []
        elif kind == "Adafactor":
            sizes += _factors(size, shape)
        elif kind in COPIES:
            if switches.get("fused") or switches.get("capturable"):
                sizes.append(STEP_BYTES)
            sizes += [size] * (COPIES[kind] + _more(kind, switches))
    return sizes


def _more(kind: str, switches: dict[str, Any]) -> int:
    if kind == "RMSprop":
        return bool(switches.get("momentum")) + bool(switches.get("centered"))
    return int(bool(switches.get("amsgrad")))


def _factors(size: int, shape: list[int]) -> list[int]:
    """Return the bytes of Adafactor's row and column of a matrix."""
    if len(shape) < 2:
        return [size]
    item = size // max(1, prod(shape))
    return [item * prod(shape[:-1]), item * prod(shape[:-2]) * shape[-1]]
