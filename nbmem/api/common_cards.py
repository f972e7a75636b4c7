"""Decide on which of the common cards a recording would run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from nbmem.report.analysis.card_sizes import CardSize
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import WouldRunOn
    from nbmem.virtual.cards import Card

COMMON = (
    "RTX 3060 12GB",
    "T4",
    "V100 16GB",
    "L4",
    "A10G",
    "RTX 4090",
    "A100 40GB",
    "A100 80GB",
    "H100 80GB",
)
"""Cards that people have, rent, or get for nothing, by nbmem's names of them."""
OF_AMD = (
    "Other cards are not compared: this one is of AMD, and the table has cards of NVIDIA, whose "
    "libraries take other memory."
)


def common_cards(card_ledger: CardLedger) -> WouldRunOn | None:
    """Return on which of the common cards a recording would run.

    Args:
        card_ledger: The recorded card's ledger.

    Returns:
        The cards; None for a recording without a card or without requests.
    """
    from nbmem.report.analysis.would_run_on import would_run_on
    from nbmem.report.estimate_results import MARGIN
    from nbmem.report.model import WouldRunOn
    from nbmem.virtual.card_names import find_card

    info = card_ledger.trace.info
    if info.is_amd and info.keeps_history and card_ledger.events:
        return WouldRunOn(limits=(OF_AMD,))
    try:
        recorded = card_size(find_card(info.name))
    except UsageError:  # a card that the table does not have
        recorded = None
    cards = [card_size(find_card(key)) for key in COMMON]
    return would_run_on(card_ledger, cards, recorded, MARGIN)


def card_size(card: Card) -> CardSize:
    """Return what a process finds on a card of the table."""
    from nbmem.report.analysis.card_sizes import CardSize

    return CardSize(
        key=card.key,
        total=card.total_bytes,
        nvml_total=card.nvml_total,
        context=card.context_bytes,
        cublas=card.cublas_bytes,
        cudnn=card.cudnn_bytes,
        nccl=card.nccl_bytes,
        unowned=card.unowned_with(1),
        cublas_workspace=card.arch.cublas_workspace,
        capability=card.capability,
        bfloat16=card.arch.bfloat16,
    )
