"""Base class of remedies, and its hooks into a program that runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.core.session.categories import Category
from nbmem.estimates.programs.user_names import ProgramNames

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card


BATCH = "<batch>"
"""Stands in lines of code for the assignment of the batch."""


@dataclass(frozen=True, slots=True)
class SavingsModel:
    """Shares of a run's ledger that a remedy takes away.

    Attributes:
        passing: Share usually removed from what forward and backward make for themselves.
        waiting: Share usually removed from what forward saves for backward; None: as `passing`.
        inputs: Share removed from the inputs.
        state: Share removed from the optimizer's state.
        stepping: Share removed from the temporaries of the optimizer's step.
        weights: Share removed from the weights.
        gradients: Share removed from their gradients.
    """

    passing: float | None = None
    waiting: float | None = None
    inputs: float | None = None
    state: float | None = None
    stepping: float | None = None
    weights: float | None = None
    gradients: float | None = None

    def share(self, category: str, phase: str) -> float | None:
        """Return the share of a category that usually goes.

        None where all of it stays for certain.
        """
        if category in _OF_ONE:
            share: float | None = getattr(self, _OF_ONE[category])
            return share
        if category == Category.ACTIVATIONS.label:
            return self.waiting if self.waiting is not None else self.passing
        if category == Category.TEMPORARIES.label and phase == "optimizer":
            return self.stepping
        if category in _PASSING:
            return self.passing
        return self._of_unknown() if category in _UNCERTAIN else None

    def _of_unknown(self) -> float | None:
        """Return 0.0 for uncertain categories, or None if no share is set.

        Anything may be among these, so nothing is certain of them.
        """
        shares = (getattr(self, name) for name in self.__slots__)
        return None if all(share is None for share in shares) else 0.0


_OF_ONE = {
    Category.OPTIMIZER_STATE.label: "state",
    Category.INPUTS.label: "inputs",
    Category.WEIGHTS.label: "weights",
    Category.GRADIENTS.label: "gradients",
}
"""Categories with a share of their own."""
_PASSING = frozenset({Category.OUTPUT_GRADIENTS.label, Category.TEMPORARIES.label})
_UNCERTAIN = frozenset(
    category.label
    for category in (
        Category.UNKNOWN, Category.USER_TENSORS, Category.WORKSPACE, Category.ROUNDING,
        Category.PENDING,
    )
)  # fmt: skip


class Remedy:
    """One change that lets a program need less memory, made per run.

    It changes the program from outside as its lines of code would. The hooks are at the outermost
    module's call, before backward, and where an optimizer is made.

    Attributes:
        key: Its name in JSON and in pairs.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste, where they do not depend on the program.
        group: Remedies of one group exclude each other.
        milder: Key of the remedy that does less of the same, for a lower price.
        conf: Allocator settings that it adds.
        parts: Into how many micro-batches it cuts a batch.
        acts: On which part of the ledger it acts.
        oversubscribes: Whether it lets a program be larger than the card; no other remedy does. It
            is the last one to try: it saves no memory, and its price has no limit.
        slow: Whether a run under it takes much longer than one without remedies. Such a remedy is
            run after all others, and only once.
        of_compiled: Whether it acts only on compiled functions.
        idle_reason: The reason for a program in which it would find nothing; `not_applicable` if
            that is empty.
        applied: How often it found something to do.
        why_not: Why it cannot help this program, if it cannot.
        own: The program's names for its model, its optimizer and its loss.
        room: Bytes of the card that the process may have.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    price: ClassVar[str]
    code: ClassVar[str] = ""
    group: ClassVar[str] = ""
    milder: ClassVar[str] = ""
    conf: ClassVar[str] = ""
    parts: ClassVar[int] = 1
    acts: ClassVar[SavingsModel] = SavingsModel()
    oversubscribes: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    of_compiled: ClassVar[bool] = False
    idle_reason: ClassVar[str] = ""
    not_applicable: ClassVar[str] = "The program has nothing that it could be applied to."

    def __init__(self) -> None:
        self.applied = 0
        self.why_not: str | None = None
        self.own = ProgramNames()
        self.room = 0

    def refuse(self, why: str) -> None:
        """Set the reason why the remedy cannot help, once.

        The run goes on without it.
        """
        self.why_not = self.why_not or why

    @property
    def unapplied(self) -> str | None:
        """The reason why the remedy did nothing; None if it did something."""
        return None if self.applied else self.why_not or self.not_applicable

    @classmethod
    def missing(cls) -> str | None:
        """Return why it cannot be tried on this machine, or None."""
        return None

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether it would surely find nothing to change.

        The program has made these models and optimizers.
        """
        return False

    def prepare(self) -> None:
        """Run before the program starts; its names are in place."""

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run before a module's outermost call; return its arguments.

        An outermost call is one that no other module makes.
        """
        del module
        return args, kwargs

    def moving(self, module: Any) -> None:
        """Run before a module without an optimizer is moved to a card."""
        del module

    def replacement(self, module: Any) -> Any:
        """Return the module to call in the place of this one."""
        return module

    def before_optimizer(self, params: Any) -> Any:
        """Run before an optimizer is made; return its parameters.

        They are parameters, or groups of them.
        """
        return params

    def before_backward(self) -> None:
        """Run before autograd runs."""

    def made_optimizer(self, optimizer: Any) -> None:
        """Run when an optimizer was made, or existed before the program."""

    def zeroing(self) -> bool:
        """Return whether zero_grad() may clear the gradients now."""
        return True

    def finish(self) -> None:
        """Run when the program has ended, with or without an error."""

    @property
    def called(self) -> str:
        """The title with this run's figures."""
        return self.title

    @property
    def fullest(self) -> int:
        """The rank that needs most memory under it, in a world of several."""
        return 0

    def price_of(self, card: Card, steps: int) -> str:
        """Return the price with this run's figures."""
        return self.price

    def code_of(self, card: Card) -> str:
        """Return the lines to paste into this program, with its own names."""
        return self.code

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines into an edit; return False if no place is known."""
        return False
