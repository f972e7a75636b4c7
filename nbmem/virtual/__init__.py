"""A CUDA card that is not there: PyTorch programs run on it unchanged and take their memory.

    from nbmem import virtual

    virtual.activate("H100 80GB")

From here on `torch.cuda` and NVML answer as the card would, until `deactivate()`. Tensors on it
have shapes and addresses but no values: see `VirtualGPU.notes` for what cannot be answered.
Importing this module does not import torch; activating a card does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nbmem.virtual import current
from nbmem.virtual.cards import CARDS, Card, find_card
from nbmem.virtual.notes import NbmemWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbmem.virtual.device import VirtualGPU

__all__ = [
    "Card",
    "NbmemWarning",
    "activate",
    "activated",
    "active",
    "cards",
    "deactivate",
    "find_card",
]

cards = CARDS


def activate(
    name: str | Card = "H100 80GB",
    *,
    release: str | None = None,
    conf: str | None = None,
    other_processes: Mapping[int, int] | int | None = None,
) -> VirtualGPU:
    """Put a virtual card in the place of CUDA for this process, until deactivate().

    Args:
        name: A card's name, in any case: "H100", "a100-40gb", "RTX 4090".
        release: The release of torch whose allocator rules hold; None: the running one's.
        conf: Allocator settings; None: PYTORCH_CUDA_ALLOC_CONF of the environment.
        other_processes: Bytes that others hold on the card, by PID or in one number.

    Raises:
        UsageError: No such card, or a real CUDA context exists already.
    """
    from nbmem.virtual.install.switch import switch_on

    card = find_card(name)
    return switch_on(card, release=release, conf=conf, other_processes=other_processes)


def deactivate() -> None:
    """Put back everything that activate() replaced; virtual tensors are unusable from then on."""
    if current.gpu() is not None:
        from nbmem.virtual.install.switch import switch_off

        switch_off()


def active() -> VirtualGPU | None:
    """The active card, or None."""
    return current.gpu()


@contextlib.contextmanager
def activated(
    name: str | Card = "H100 80GB",
    *,
    release: str | None = None,
    conf: str | None = None,
    other_processes: Mapping[int, int] | int | None = None,
) -> Iterator[VirtualGPU]:
    """The same for a `with` block."""
    gpu = activate(name, release=release, conf=conf, other_processes=other_processes)
    try:
        yield gpu
    finally:
        deactivate()
