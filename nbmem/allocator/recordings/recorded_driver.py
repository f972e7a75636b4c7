"""A driver that repeats the addresses and refusals of a recorded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import ReplayError
from nbmem.core.session.events import GIVES_BACK, Action

if TYPE_CHECKING:
    from collections import deque

NOWHERE = 1 << 62
"""An address that no recording has."""
DriverEvent = tuple[Action, int, int]
"""Action, address, bytes."""


class Divergence(ReplayError):  # noqa: N818 - the ordinary end of a comparison, not a fault
    """A difference between the model's behaviour and the recording.

    Attributes:
        recorded: What the recording did, as a sentence's end.
        model: What the model did.
        after_refusal: Whether the model had first to take a release for a refusal of the driver's.
    """

    def __init__(self, recorded: str, model: str, *, after_refusal: bool = False) -> None:
        self.recorded = recorded
        self.model = model
        self.after_refusal = after_refusal
        super().__init__(f"The recording {recorded}; the model {model}.")


def describe(event: DriverEvent) -> str:
    """Describe a driver event as the end of a sentence."""
    action, addr, size = event
    verb = {
        Action.SEGMENT_ALLOC: "took a segment of",
        Action.SEGMENT_FREE: "gave back a segment of",
        Action.SEGMENT_MAP: "mapped",
        Action.SEGMENT_UNMAP: "unmapped",
    }[action]
    return f"{verb} {size} bytes at {addr:#x}"


class RecordedDriver:
    """A driver that returns what the recorded driver returned next.

    A recording does not contain refusals. If the model requests memory and the recording first
    gives some back, or ends in an OOM, the driver must have refused.

    Attributes:
        due: The driver events that the recording shows before the request being replayed.
        fails: Whether that request ended in an OOM.
        refused: Whether the driver has refused since the request began.
        free_bytes: Free bytes of the card; only the recording's OOM entries contain them.
    """

    __slots__ = ("due", "fails", "free_bytes", "refused")

    def __init__(self, due: deque[DriverEvent]) -> None:
        self.due = due
        self.fails = False
        self.refused = False
        self.free_bytes = 0

    def _next(self, action: Action, size: int) -> int | None:
        """Return the address of the next due event if it is of this kind.

        The result is None where the driver must refuse.
        """
        if self.due and self.due[0][0] is action:
            _, addr, recorded = self.due[0]
            if recorded != size:
                simulated = describe((action, addr, size))
                raise Divergence(describe(self.due[0]), simulated, after_refusal=self.refused)
            self.due.popleft()
            return addr
        if self.fails or (self.due and self.due[0][0] in GIVES_BACK):
            self.refused = True
            return None
        recorded_text = describe(self.due[0]) if self.due else "took no new memory"
        raise Divergence(
            recorded_text, f"asked the driver for {size} bytes ({action.name.lower()})"
        )

    def malloc(self, size: int) -> int | None:
        """Return the address of the recorded segment, or None for a refusal."""
        return self._next(Action.SEGMENT_ALLOC, size)

    def free(self, addr: int, size: int) -> None:
        """Free a segment that the recording released at this point, too."""
        self._given_back(Action.SEGMENT_FREE, addr, size)

    def reserve(self, size: int) -> int:
        """Return the address of the first page that is mapped next.

        A virtual range is taken to begin there. Known limit: where the driver refused even that
        page, the address is made up, and later requests of that pool and stream differ.
        """
        for action, addr, _ in self.due:
            if action is Action.SEGMENT_MAP:
                return addr
        if not self.fails:
            recorded = describe(self.due[0]) if self.due else "took no new memory"
            raise Divergence(recorded, f"reserved {size} bytes of addresses")
        return NOWHERE

    def release(self, addr: int, size: int) -> None:
        """Do nothing, because virtual ranges are not recorded."""

    def map(self, addr: int, size: int) -> bool:
        """Map pages as the recording did; return False for a refusal."""
        recorded = self._next(Action.SEGMENT_MAP, size)
        if recorded is not None and recorded != addr:
            raise Divergence(
                describe((Action.SEGMENT_MAP, recorded, size)),
                describe((Action.SEGMENT_MAP, addr, size)),
            )
        return recorded is not None

    def unmap(self, addr: int, size: int) -> None:
        """Unmap pages that the recording unmapped at this point, too."""
        self._given_back(Action.SEGMENT_UNMAP, addr, size)

    def _given_back(self, action: Action, addr: int, size: int) -> None:
        event = (action, addr, size)
        for at, due in enumerate(self.due):
            if due == event:
                del self.due[at]
                return
            if due[0] not in GIVES_BACK:
                break
        raise Divergence("did not", describe(event), after_refusal=self.refused)
