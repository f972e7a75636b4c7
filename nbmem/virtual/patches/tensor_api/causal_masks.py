"""Detection of causal masks in torch's encoders and decoders.

They compare a mask's values with those of a causal mask, which a virtual card does not have.

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

DETECT_CAUSAL = "_detect_is_causal_mask"


def mask_patches(mode: CardMode) -> list[Patch]:
    """Return a patch that takes an unknown square mask for a causal one.

    Most square masks are causal. A mask of known values is compared.
    """
    original: Any = getattr(transformer, DETECT_CAUSAL, None)
    if original is None:
        return []

    def is_causal_mask(
        mask: torch.Tensor | None, is_causal: Any = None, size: int | None = None
    ) -> bool:
        found: bool = original(mask, is_causal, size)  # It is called for its allocations, too.
        if is_causal is not None or mask is None or not is_virtual(mask):
            return found
        if mode.values.cpu_values(mask) is not None:
            return found
        side = mask.size(-2) if size is None else size
        return mask.size() == (side, side)

    return [Patch(transformer, DETECT_CAUSAL, is_causal_mask)]
