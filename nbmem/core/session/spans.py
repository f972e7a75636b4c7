"""Named spans of time: sessions, cells, training phases and user blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbmem.core.session.tensor_names import printable_text

SpanKind = Literal["cell", "phase", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of a session, placed exactly in each device's events.

    Attributes:
        kind: Its kind.
        name: Cell label, phase name (load, input, forward, backward, optimizer, zero_grad,
            inference; recompute inside a backward) or the user's own name, as it may be shown.
        step: Number of the training loop's pass, from 0; None outside of a loop.
        parent: Index of the enclosing span in the session, or None.
        t0_ns: Start, nanoseconds since the epoch.
        t1_ns: End.
        first: Per device (in the session's order): index of the first event inside.
        last: Per device: index after the last event inside.
    """

    kind: SpanKind
    name: str
    step: int | None = None
    parent: int | None = None
    t0_ns: int
    t1_ns: int
    first: tuple[int, ...]
    last: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable_text(self.name))
