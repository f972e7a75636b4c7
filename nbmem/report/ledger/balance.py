"""The ledger: bytes per category at one moment, summing to the whole card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.errors import LedgerImbalanceError
from nbmem.core.session.categories import ACTIVE, PROCESS, RESERVED, Category
from nbmem.core.session.tensor_parts import CategoryPart, with_rest

if TYPE_CHECKING:
    from nbmem.core.session.frameworks import Share
    from nbmem.core.session.host_memory import MachineParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """Bytes of managed memory (cudaMallocManaged) at one moment.

    The figures are as exact as the driver's. It counts such pages for the card and for no process:
    https://github.com/rapidsai/rmm/issues/2259, https://github.com/Syllo/nvtop/issues/213.

    Attributes:
        size: Bytes that exist, on the card or elsewhere.
        place: The category that contains the part on the card.
        most_on_card: Upper bound on its bytes on the card.
        least_away: Lower bound on its bytes that do not fit on the card.
    """

    size: int
    place: Category
    most_on_card: int
    least_away: int

    def to_json(self) -> dict[str, str | int]:
        """Return the bytes by stable keys."""
        return {
            "bytes": self.size,
            "within": self.place.key,
            "on_card_at_most": self.most_on_card,
            "away_at_least": self.least_away,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Bytes of a card by category at one moment.

    Attributes:
        total_bytes: The card's bytes.
        held: Bytes of each category, in the order of Category.
        process_known: Whether the driver reports this process's memory. If not (containers, no
            NVML), `context` is all used bytes of the card beyond the reserved bytes.
        owners: The other frameworks, the largest first: they add up to their two categories.
        machine: Parts of the host's memory across the categories; None for a card.
        parts: Parts of categories: the KV cache, adapters.
    """

    total_bytes: int
    held: tuple[int, ...]
    process_known: bool = True
    owners: tuple[Share, ...] = ()
    machine: MachineParts | None = None
    parts: tuple[CategoryPart, ...] = ()

    def __getitem__(self, category: Category) -> int:
        """Return the bytes of one category."""
        return self.held[category]

    @property
    def active(self) -> int:
        """Bytes of blocks in use, pending ones included."""
        return sum(self.held[c] for c in ACTIVE)

    @property
    def allocated(self) -> int:
        """Bytes of live blocks, as torch.cuda.memory_allocated() reports."""
        return self.active - self.held[Category.PENDING]

    @property
    def reserved(self) -> int:
        """Bytes held from the driver, as torch.cuda.memory_reserved() reports."""
        return sum(self.held[c] for c in RESERVED)

    @property
    def process(self) -> int | None:
        """Bytes that nvidia-smi shows for this process, or None if unknown.

        The driver hides them in containers and without NVML.
        """
        return sum(self.held[c] for c in PROCESS) if self.process_known else None

    @property
    def managed(self) -> Managed | None:
        """Managed memory of other frameworks; None if they report none."""
        size = sum(share.managed for share in self.owners)
        if not size:
            return None
        place = Category.OTHER_PROCESSES if self.process_known else Category.CONTEXT
        most = self.held[place]
        return Managed(
            size=size,
            place=place,
            most_on_card=min(size, most),
            least_away=max(0, size - most - self.held[Category.FREE]),
        )

    @property
    def outside(self) -> int:
        """Bytes in use that torch's allocator does not hold.

        They belong to other frameworks, other processes, the CUDA context and the driver.
        """
        return self.used - self.reserved

    @property
    def used(self) -> int:
        """Bytes of the card in use by any process or by the driver."""
        return self.total_bytes - self.held[Category.FREE]

    def check(self, *, allocated: int | None = None, reserved: int | None = None) -> None:
        """Raise unless every byte of the card is in exactly one category.

        Args:
            allocated: Bytes that the allocator itself reports; None to skip the check.
            reserved: Reserved bytes that the allocator itself reports; None to skip the check.

        Raises:
            LedgerImbalanceError: The categories do not add up.
        """
        cached = sum(share.cached for share in self.owners)
        used = sum(share.held for share in self.owners) - cached
        for name, parts, whole in (
            ("the card", sum(self.held), self.total_bytes),
            ("other frameworks", self.held[Category.FRAMEWORKS], used),
            ("other frameworks' pools", self.held[Category.FRAMEWORKS_CACHED], cached),
            ("allocated", self.allocated, allocated),
            ("reserved", self.reserved, reserved),
        ):
            if whole is not None and parts != whole:
                raise LedgerImbalanceError(
                    f"The categories hold {parts} B of {name}, which has {whole} B "
                    f"({parts - whole:+} B). The figures of this report are not to be trusted; "
                    "please report it with the session's file (%nbmem save)."
                )
        if min(self.held) < 0:
            name = Category(self.held.index(min(self.held))).label
            raise LedgerImbalanceError(f"The category {name} holds {min(self.held)} B.")

    def to_json(self) -> dict[str, int]:
        """Return the bytes by the categories' stable keys.

        Their sum is `total_bytes`.
        """
        return {category.key: self.held[category] for category in Category}

    def parts_of(self, category: Category) -> list[tuple[str, int]]:
        """Return the parts of a category, which add up to it; empty without any."""
        return with_rest((one for one in self.parts if one.category is category), self[category])

    def parts_json(self) -> dict[str, dict[str, int]]:
        """Return the parts of each category that has any, by its key."""
        listed = {one.category: self.parts_of(one.category) for one in self.parts}
        return {category.key: dict(parts) for category, parts in listed.items()}

    def frameworks_json(self) -> list[dict[str, str | int | None]]:
        """List what each other framework holds, the largest first.

        A figure that the framework does not report is null.
        """
        return [
            {
                "name": share.name,
                "held": share.held,
                "used": share.used,
                "managed": share.managed,
            }
            for share in self.owners
        ]
