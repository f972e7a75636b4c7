"""One thread's training loop while it is recorded: what runs in it, and how far it has come."""

from __future__ import annotations

import threading


class Loop:
    """One thread's training loop, as far as it has come.

    Attributes:
        number: Tells it from others; identifiers of threads are given again when one has ended.
        ident: Its thread's identifier.
        name: Its thread's name.
        phase: What runs now; None between phases.
        step: Passes that are over.
        busy: What the thread is inside of: a forward, the engine, a step. Others keep off its
            tensors while it is.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.ident = threading.get_ident()
        self.name = threading.current_thread().name
        self.phase: str | None = None
        self.step = 0
        self.busy: str | None = None
        self.root = 0
        self.graph_from = 0  # mark at which the graph of the next backward began
        self.stepped: set[int] = set()
        self.usual = 1  # optimizers of a pass
        self.ahead = False  # whether a pass has begun whose optimizer has not stepped yet
        self.inside = False  # whether the pass runs inside its optimizer's step

    def is_ahead(self) -> bool:
        """Whether what begins now belongs to the next pass."""
        return len(self.stepped) >= self.usual and not self.inside
