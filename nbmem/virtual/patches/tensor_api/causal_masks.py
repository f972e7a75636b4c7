"""Detection of causal masks in torch's encoders and decoders.

They compare a mask's values with those of a causal one.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/transformer.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules import transformer

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    import torch

    from nbmem.virtual.dispatch.card_mode import CardMode

COMPARING = "_detect_is_causal_mask"


def mask_patches(mode: CardMode) -> list[Patch]:
    """Return a patch that takes an unknown square mask for a causal one.

    Most square masks are causal. A mask of known values is compared.
    """
    true: Any = getattr(transformer, COMPARING, None)
    if true is None:
        return []

    def is_causal_mask(
        mask: torch.Tensor | None, is_causal: Any = None, size: int | None = None
    ) -> bool:
        found: bool = true(mask, is_causal, size)  # which takes memory on the card
        if is_causal is not None or mask is None or not is_virtual(mask):
            return found
        if mode.values.twin(mask) is not None:
            return found
        side = mask.size(-2) if size is None else size
        return mask.size() == (side, side)

    return [Patch(transformer, COMPARING, is_causal_mask)]
