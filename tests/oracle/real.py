"""Use a real card instead: `python -m tests.oracle --probes --real`.

What the oracle's probes hold is then asked of a card's own driver and NVML. The card that the
machine has serves every test, whichever it asks for: what needs another one's size or name fails,
and does on the oracle of that card, too, where the same command shows it (`--run -m tests.oracle`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tests.oracle import card as oracle

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card


class RealCard(oracle.OracleCard):
    """A card's figures for tests, read from torch, the driver and NVML."""

    _taken: ctypes.c_void_p | None = None

    @property
    def process_bytes(self) -> int:
        from nbmem.capture.devices.nvml import NvmlProbe

        return NvmlProbe().read(self.index).process or 0

    @property
    def beside(self) -> int:
        """Bytes that this process has taken from the driver itself, as a library would."""
        return self._beside

    @beside.setter
    def beside(self, size: int) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        if self._taken is not None:
            driver.cuMemFree_v2(self._taken)
        self._taken, self._beside = None, size
        if size:
            self._taken = ctypes.c_void_p()
            if driver.cuMemAlloc_v2(ctypes.byref(self._taken), ctypes.c_size_t(size)):
                raise oracle.OnlyVirtualError("The process holds nothing of the card yet.")


def others(held: Mapping[int, int] | int | None) -> None:
    """Start other processes that hold so much.

    Raises:
        OnlyVirtualError: A process holds its context, too, so not what is asked for.
    """
    if held is not None:
        raise oracle.OnlyVirtualError("What other processes hold is not chosen on a real card.")


def find_real_card() -> tuple[Card, ...]:
    """Return the machine's first card from the virtual card's table.

    Raises:
        OnlyVirtualError: The table has no such card.
    """
    from nbmem.core.errors import UsageError
    from nbmem.virtual import find_cards

    name = oracle._names()[0]
    try:
        return find_cards(name)
    except UsageError as err:
        raise oracle.OnlyVirtualError(str(err)) from None


def refuse_rendezvous(*_url: Any, **_options: Any) -> NoReturn:
    """Refuse a rendezvous: the library's ranks would really meet.

    Raises:
        OnlyVirtualError: Always.
    """
    raise oracle.OnlyVirtualError("The other ranks are none, and NCCL asks them.")
