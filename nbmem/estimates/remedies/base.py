"""What a remedy is, and what it can hook into while a program runs under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.core.errors import NbmemError

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card


BATCH = "<batch>"
"""Stands in lines of code for the assignment of the batch."""


class NotApplicableError(NbmemError):
    """A remedy has nothing to do in this program; the text says why."""


class Remedy:
    """One way to need less memory, made anew for each run.

    It changes the program as its lines of code would, from outside: at the outermost module's call,
    before backward, where an optimizer is made.

    Attributes:
        key: Its name in JSON and in pairs.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste, where they do not depend on the program.
        group: Remedies of one group exclude each other.
        conf: Allocator settings that it adds.
        parts: Into how many micro-batches it cuts a batch.
        applied: How often it found something to do.
        why_not: Why it cannot help this program, if it cannot.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    price: ClassVar[str]
    code: ClassVar[str] = ""
    group: ClassVar[str] = ""
    conf: ClassVar[str] = ""
    parts: ClassVar[int] = 1
    nothing: ClassVar[str] = "The program has nothing that it could be applied to."

    def __init__(self) -> None:
        self.applied = 0
        self.why_not: str | None = None

    def refuse(self, why: str) -> None:
        """It cannot help; said once, and the run goes on as it is."""
        self.why_not = self.why_not or why

    @property
    def unapplied(self) -> str | None:
        """Why it did nothing; None if it did something."""
        return None if self.applied else self.why_not or self.nothing

    def prepare(self) -> None:
        """Before the program starts; its names are in place."""

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before each call of a module that no other module calls; returns its arguments."""
        del module
        return args, kwargs

    def before_backward(self) -> None:
        """Before autograd runs."""

    def made_optimizer(self, optimizer: Any) -> None:
        """An optimizer has been made, or was there before the program."""

    def zeroing(self) -> bool:
        """Whether zero_grad() may clear the gradients now."""
        return True

    def finish(self) -> None:
        """The program has ended, well or not."""

    def price_of(self, card: Card, steps: int) -> str:
        """The price with this run's figures."""
        del card, steps
        return self.price

    def code_of(self, card: Card) -> str:
        """The lines to paste into this program."""
        del card
        return self.code
