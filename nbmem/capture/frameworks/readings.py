"""Query other frameworks for their GPU memory, and check the answers.

A framework that has failed is not queried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbmem.capture.frameworks import OWNERS
from nbmem.capture.timeouts import LIMIT_S, HungError, call_with_timeout
from nbmem.capture.validation import ImpossibleReadingError, format_value, whole_bytes
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.session.frameworks import LABELS, Share

if TYPE_CHECKING:
    from nbmem.capture.frameworks import Framework, FrameworkReading

_hung: set[str] = set()
"""Frameworks that hung, for the rest of the process."""


class FrameworkQueries:
    """The other frameworks, queried by one thread at a time.

    Only loaded frameworks are queried.

    Args:
        note: Called with one sentence for each omitted framework.
        owners: The frameworks.

    Attributes:
        asking: The framework that is being queried now; None between two queries.
    """

    def __init__(self, note: Callable[[str], None], owners: Sequence[Framework] = OWNERS) -> None:
        self.asking: str | None = None
        self._note = note
        self._owners = list(owners)

    def read(self, device: int) -> tuple[Share, ...]:
        """Return what each framework holds of a GPU, by CUDA ordinal.

        Frameworks that hold nothing are omitted.
        """
        responsive = [owner for owner in self._owners if owner.name not in _hung]
        shares = (self._query(owner, device) for owner in responsive)
        return tuple(share for share in shares if share is not None)

    def read_in_time(self, device: int) -> tuple[Share, ...]:
        """Read within a time limit; empty if a framework hangs.

        For a thread that must not wait. A framework that hangs is not queried again, and the other
        frameworks' figures of this reading are lost.
        """
        try:
            return call_with_timeout(lambda: self.read(device), LIMIT_S)
        except HungError:
            self.disable_hanging()
            return ()

    def doubt(self, share: Share, most: int) -> None:
        """Leave out a framework that reports more than is possible.

        Args:
            share: Its report.
            most: Bytes that it can hold.
        """
        self._leave_out(
            share.name,
            f"it says that it holds {share.held} B, and no more than {most} B lie outside of "
            "torch's allocator",
        )

    def disable_hanging(self) -> str | None:
        """Stop querying the framework that hangs; return a note, or None.

        None if no framework is being queried. The framework is not queried again in this process.
        """
        name = self.asking
        if name is None:
            return None
        _hung.add(name)
        return (
            f"{LABELS[name]} did not say within a second what it holds of the card, so nobody asks "
            "it again in this process; readings of the whole card are missing from here on."
        )

    def _query(self, owner: Framework, device: int) -> Share | None:
        try:
            if not owner.is_loaded:
                return None
            self.asking = owner.name
            try:
                return _share(owner.name, owner.read(device))
            except ImpossibleReadingError:  # it may have released memory between two figures
                return _share(owner.name, owner.read(device))
        except ImpossibleReadingError as err:
            self._leave_out(owner.name, str(err))
        except BaseException as err:  # noqa: BLE001 - a library may even raise SystemExit; no
            self._leave_out(owner.name, error_of(err))  # Ctrl-C reaches a thread of nbmem's
        finally:
            self.asking = None
        return None

    def _leave_out(self, name: str, why: str) -> None:
        self._owners = [owner for owner in self._owners if owner.name != name]
        self._note(
            f"What {LABELS[name]} holds of the card is not known: {why}. Its bytes are counted "
            "with the context and libraries."
        )


def _share(name: str, reading: FrameworkReading | None) -> Share | None:
    """Return a reading as a validated `Share`; None for one of nothing.

    Raises:
        ImpossibleReadingError: The figures are no byte counts, or more is used than held.
    """
    if reading is None:
        return None
    held, managed = whole_bytes(reading.held), whole_bytes(reading.managed)
    used = None if reading.used is None else whole_bytes(reading.used)
    silent = reading.used is None
    if held is None or managed is None or not (silent or (used is not None and used <= held)):
        raise ImpossibleReadingError(
            f"it says that it holds {format_value(reading.held)} B and uses "
            f"{format_value(reading.used)} B, "
            "which cannot be"
        )
    share = Share(name=name, held=held, used=used, managed=managed)
    return share if held or managed else None
