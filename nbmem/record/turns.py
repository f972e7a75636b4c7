"""What the training hooks saw, in order, with as few readings as the phases need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nbmem.record.identities import IdentityLog
    from nbmem.record.marks import MarkLog
    from nbmem.record.program import ProgramLog

Kind = Literal["forward", "inference", "recompute", "backward", "optimizer", "zero_grad"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A hook's word that something begins or ends.

    Attributes:
        kind: What.
        begins: Whether it begins.
        mark: Index of the reading taken then.
        key: Tells one module or optimizer from another.
        closure: Whether an optimizer's step begins inside which forward and backward run.
    """

    kind: Kind
    begins: bool
    mark: int
    key: int
    closure: bool = False


class TurnLog:
    """Listens to the training loop (probes.training.Listener): a reading at each change of phase.

    Modules that are called one after another inside one forward cost no reading.

    Args:
        marks: Takes the readings.
        identities: Sees weights, gradients, state and inputs where they are known to be.
        program: Remembers how modules were called.
    """

    def __init__(self, marks: MarkLog, identities: IdentityLog, program: ProgramLog) -> None:
        self.turns: list[Turn] = []
        self.phase: str | None = None
        self.step = 0
        self._marks = marks
        self._identities = identities
        self._program = program
        self._root = 0
        self._graph_from = 0  # mark at which the graph of the next backward began
        self._stepped: set[int] = set()
        self._usual = 1  # optimizers of a pass
        self._ahead = False  # whether a pass has begun whose optimizer has not stepped yet
        self._inside = False  # whether the pass runs inside its optimizer's step

    def step_now(self) -> int | None:
        """Step of what runs now; None before the loop.

        In a loop of several optimizers it is a guess until the first pass is over.
        """
        if not self.turns:
            return None
        return self.step + self._ahead

    def _turn(self, kind: Kind, *, begins: bool, key: int = 0, closure: bool = False) -> int:
        mark = self._marks.take()
        self.turns.append(Turn(kind, begins, mark, key, closure))
        return mark

    def _is_ahead(self) -> bool:
        return len(self._stepped) >= self._usual and not self._inside

    def forward_begins(self, module: Any, *, grad: bool, in_backward: bool) -> None:
        """A module is called: a phase begins, unless one of its kind goes on."""
        if in_backward:
            self._turn("recompute", begins=True)
            return
        kind: Kind = "forward" if grad else "inference"
        if self.phase == "forward" and (not grad or id(module) != self._root):
            return  # a part of the forward that runs: a criterion, a second network, a teacher
        if self.phase == kind and id(module) != self._root:
            return
        self._root = id(module)
        self.phase = kind
        self._ahead = self._is_ahead()
        self._graph_from = self._turn(kind, begins=True, key=self._root)

    def forward_ends(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, in_backward: bool
    ) -> None:
        """A module has returned: what it was given and what it owns can be seen now."""
        if in_backward:
            self._turn("recompute", begins=False)
            return
        kind: Kind = "inference" if self.phase == "inference" else "forward"
        mark = self._turn(kind, begins=False, key=id(module))
        self._identities.module(mark, module)
        self._identities.inputs(mark, args, kwargs)
        self._program.called(module, args, kwargs)

    def backward_begins(self, outputs: Sequence[Any]) -> None:
        """The engine is about to run: what the graph has saved can be seen now."""
        self.phase = "backward"
        self._ahead = self._is_ahead()
        mark = self._turn("backward", begins=True)
        forward = (self._root, *self._marks.growth(self._graph_from, mark))
        self._identities.saved(mark, outputs, forward)

    def backward_ends(self) -> None:
        """The engine has run: the gradients are there."""
        self.phase = "optimizer" if self._inside else None
        self._graph_from = self._turn("backward", begins=False)
        self._identities.gradients(self._graph_from)

    def optimizer_begins(self, optimizer: Any, *, closure: bool) -> None:
        """An optimizer steps."""
        self.phase = "optimizer"
        if id(optimizer) in self._stepped:  # its second step: a new pass of the loop
            self.step += 1
            self._usual = len(self._stepped)
            self._stepped.clear()
        self._stepped.add(id(optimizer))
        self._ahead, self._inside = False, closure
        self._identities.meet(optimizer)
        self._turn("optimizer", begins=True, key=id(optimizer), closure=closure)

    def optimizer_ends(self, optimizer: Any) -> None:
        """An optimizer has stepped: its state is there."""
        self.phase, self._inside = None, False
        mark = self._turn("optimizer", begins=False, key=id(optimizer))
        self._identities.state(mark, optimizer)

    def zero_grad_begins(self) -> None:
        """Gradients are about to go."""
        self.phase = "zero_grad"
        self._turn("zero_grad", begins=True)

    def zero_grad_ends(self) -> None:
        """Gradients are gone or zero."""
        self.phase = None
        self._turn("zero_grad", begins=False)
