"""A virtual CUDA card: programs run unchanged and allocate as on it.

    from nbmem import virtual

    virtual.activate("H100 80GB")  # or "2xT4" for two cards

From here on `torch.cuda` and NVML behave as with the card, until `deactivate()`. Tensors on it
have shapes and addresses but no values: `VirtualGPU.notes` lists what cannot be simulated.
Importing this module does not import torch; activating a card does.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.virtual import current_machine
from nbmem.virtual.card_names import find_card, find_cards
from nbmem.virtual.cards import CARDS, Card
from nbmem.virtual.warnings import NbmemWarning

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.tensors.storages import CardMemory, KnownValues

__all__ = [
    "Card",
    "NbmemWarning",
    "activate",
    "activated",
    "active",
    "cards",
    "deactivate",
    "find_card",
    "find_cards",
    "gpus",
    "known_values",
    "learn_values",
    "live_bytes",
]

cards = CARDS


def activate(  # noqa: PLR0913 - what a machine is made of
    name: str | Card | tuple[Card, ...] = "H100 80GB",
    *,
    release: str | None = None,
    conf: str | None = None,
    other_processes: Mapping[int, int] | int | None = None,
    defer: bool = False,
    eager: bool = False,
    keep: str | None = None,
) -> VirtualGPU:
    """Replace CUDA by virtual cards in this process, until deactivate().

    Args:
        name: A card's name, in any case: "H100", "a100-40gb", "RTX 4090"; several cards of one
            machine as "2xT4", of two kinds as "H100, 2xT4", or as a tuple. CUDA_VISIBLE_DEVICES is
            of the real cards and hides none of these.
        release: The release of torch whose allocator rules apply; None: the running one's.
        conf: Allocator settings; None: PYTORCH_CUDA_ALLOC_CONF of the environment,
            as it is when the program first touches the card.
        other_processes: Bytes that others hold on each card, by PID or in one number.
        defer: Write large tensors on the CPU only when they are read (`virtual/tensors/host`).
        eager: Run compiled functions eagerly: Inductor's plan of a region takes seconds to minutes.
        keep: Folder of plans of compiled regions, which other activations reuse; None to save
            none. Torch reads them as pickles, so only this user may be able to write there.

    Returns:
        The first card, cuda:0; `gpus()` has all of them.

    Raises:
        UsageError: No such card, or a real CUDA context exists already.
    """
    cards = find_cards(name)
    importlib.import_module("torch")  # it would issue its warnings in the program, too
    with suppress_warnings():
        from nbmem.virtual.patches.activation import switch_on

        machine = switch_on(
            cards,
            release=release,
            conf=conf,
            other_processes=other_processes,
            defer=defer,
            eager=eager,
            keep=keep,
        )
    return machine.gpus[0]


def deactivate() -> None:
    """Undo activate(); virtual tensors are unusable from then on."""
    if current_machine.machine() is not None:
        from nbmem.virtual.patches.activation import switch_off

        with suppress_warnings():
            switch_off()


def active() -> VirtualGPU | None:
    """Return the active card, the first of several; None without one."""
    return next(iter(gpus()), None)


def gpus() -> tuple[VirtualGPU, ...]:
    """Return the active cards by CUDA ordinal; empty without one."""
    machine = current_machine.machine()
    return () if machine is None else machine.gpus


def live_bytes() -> int:
    """Return the bytes of live tensors on the active cards.

    deactivate() makes those tensors unusable. Each storage counts once with its requested bytes,
    without cuBLAS's workspaces; 0 without a card.
    """
    if current_machine.machine() is None:
        return 0
    from nbmem.virtual.patches.activation import activation

    live: int = activation().mode.storages.live_bytes()
    return live


def known_values(storage: Any) -> KnownValues | None:
    """Return what is known of a storage's values on an active card.

    The result can be pickled. None for a storage on no such card.
    """
    block = _block_of(storage)
    return None if block is None else block.known_values()


def learn_values(storage: Any, known: KnownValues | None) -> None:
    """Set what is known of a storage's values on an active card.

    None: nothing is known of them.
    """
    block = _block_of(storage)
    if block is not None and known is None:
        block.forget_values()
    elif block is not None and known is not None:
        block.learn_values(known)


def _block_of(storage: Any) -> CardMemory | None:
    if current_machine.machine() is None:
        return None
    from nbmem.virtual.patches.activation import activation

    block: CardMemory | None = activation().mode.storages.of_storage(storage)
    return block


@contextlib.contextmanager
def activated(  # noqa: PLR0913 - as of activate
    name: str | Card | tuple[Card, ...] = "H100 80GB",
    *,
    release: str | None = None,
    conf: str | None = None,
    other_processes: Mapping[int, int] | int | None = None,
    defer: bool = False,
    eager: bool = False,
    keep: str | None = None,
) -> Iterator[VirtualGPU]:
    """Activate virtual cards for a `with` block; see `activate`."""
    gpu = activate(
        name,
        release=release,
        conf=conf,
        other_processes=other_processes,
        defer=defer,
        eager=eager,
        keep=keep,
    )
    try:
        yield gpu
    finally:
        deactivate()
