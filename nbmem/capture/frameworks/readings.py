"""Asks the owners, checks their answers at the border, and asks none again that has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.capture.frameworks import OWNERS
from nbmem.capture.timeouts import LIMIT_S, HungError, patiently
from nbmem.capture.validation import ImpossibleReadingError, shown, whole_bytes
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.session.frameworks import LABELS, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.capture.frameworks import Owner, OwnerReading

_hung: set[str] = set()
"""Owners that did not answer, for the rest of the process."""


class Owners:
    """Asks every library that is loaded; only one thread at a time may.

    Args:
        note: Called with one sentence for what is left out.
        owners: Whom to ask.

    Attributes:
        asking: Who is being asked now; None between two questions.
    """

    def __init__(self, note: Callable[[str], None], owners: Sequence[Owner] = OWNERS) -> None:
        self.asking: str | None = None
        self._note = note
        self._owners = list(owners)

    def read(self, device: int) -> tuple[Share, ...]:
        """What each holds of a card, by CUDA ordinal; without those that hold nothing."""
        asked = [owner for owner in self._owners if owner.name not in _hung]
        shares = (self._ask(owner, device) for owner in asked)
        return tuple(share for share in shares if share is not None)

    def read_in_time(self, device: int) -> tuple[Share, ...]:
        """Read, for a thread that somebody waits for: one that hangs is left, with the others."""
        try:
            return patiently(lambda: self.read(device), LIMIT_S)
        except HungError:
            self.give_up()
            return ()

    def doubt(self, share: Share, most: int) -> None:
        """Leave out an owner that says it holds more than can be, and say so.

        Args:
            share: What it says.
            most: Bytes that it can hold.
        """
        self._leave_out(
            share.name,
            f"it says that it holds {share.held} B, and no more than {most} B lie outside of "
            "torch's allocator",
        )

    def give_up(self) -> str | None:
        """The one that is being asked hangs: nobody asks it again. The sentence to say, or None."""
        name = self.asking
        if name is None:
            return None
        _hung.add(name)
        return (
            f"{LABELS[name]} did not say within a second what it holds of the card, so nobody asks "
            "it again in this process; readings of the whole card are missing from here on."
        )

    def _ask(self, owner: Owner, device: int) -> Share | None:
        try:
            if not owner.is_loaded:
                return None
            self.asking = owner.name
            try:
                return _share(owner.name, owner.read(device))
            except ImpossibleReadingError:  # it may have given memory back between two figures
                return _share(owner.name, owner.read(device))
        except ImpossibleReadingError as err:
            self._leave_out(owner.name, str(err))
        except BaseException as err:  # noqa: BLE001 - a library may raise SystemExit, too; no
            self._leave_out(owner.name, error_of(err))  # Ctrl-C comes into a thread of nbmem's
        finally:
            self.asking = None
        return None

    def _leave_out(self, name: str, why: str) -> None:
        self._owners = [owner for owner in self._owners if owner.name != name]
        self._note(
            f"What {LABELS[name]} holds of the card is not known: {why}. Its bytes are counted "
            "with the context and libraries."
        )


def _share(name: str, reading: OwnerReading | None) -> Share | None:
    """A reading as the books take it; None for one of nothing.

    Raises:
        ImpossibleReadingError: It cannot be so.
    """
    if reading is None:
        return None
    held, managed = whole_bytes(reading.held), whole_bytes(reading.managed)
    used = None if reading.used is None else whole_bytes(reading.used)
    silent = reading.used is None
    if held is None or managed is None or not (silent or (used is not None and used <= held)):
        raise ImpossibleReadingError(
            f"it says that it holds {shown(reading.held)} B and uses {shown(reading.used)} B, "
            "which cannot be"
        )
    share = Share(name=name, held=held, used=used, managed=managed)
    return share if held or managed else None
