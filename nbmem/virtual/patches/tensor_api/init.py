"""Initializations of torch.nn.init that inspect the values they draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import init

from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    import torch

    from nbmem.virtual.dispatch.card_mode import CardMode

TRUNCATED = "_no_grad_trunc_normal_"


def init_patches(mode: CardMode) -> list[Patch]:
    """Return a patch that records trunc_normal_ as one recipe step.

    It draws until the numbers are in range, and all of that is one step of a recipe.
    """
    original = getattr(init, TRUNCATED, None)
    if original is None:
        return []

    def truncated(tensor: torch.Tensor, *args: Any, generator: Any = None) -> torch.Tensor:
        if len(args) == 4 and mode.host.note(original, tensor, args, generator):
            return tensor
        return original(tensor, *args, generator=generator)

    return patches_of(init, {TRUNCATED: truncated})
