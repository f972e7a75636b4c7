"""Results of fit, plan and layers: figures that are ready to draw.

`nbmem/estimates`, a layer above the views, computes them. They lie here, a layer below
the views.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["memory", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """The card of an estimate, in bytes.

    Attributes:
        name: As the driver reports it.
        total: What CUDA has to give out.
        margin: Kept free for the error of the estimate.
        driver: What the driver keeps besides; nvidia-smi's total, by which cards are known, has it.
    """

    name: str
    total: int
    margin: int
    driver: int

    @property
    def kept(self) -> str:
        """The part of `total` that is kept free and its purpose, as a sentence."""
        if not self.margin:
            return "Nothing is kept free for the error of the estimate."
        part = f"{format_bytes(self.margin)} ({self.margin / self.total:.0%} of the card)"
        return f"{part} are kept free for the error of the estimate."

    @property
    def share(self) -> str:
        """The reason why `total` is below the card's size; empty without one."""
        if not self.driver:
            return ""
        whole = format_bytes(self.total + self.driver)
        return (
            f"CUDA gives out {format_bytes(self.total)} of its {whole}; the driver keeps the rest."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a run on the virtual card did not come to its end.

    Attributes:
        kind: `memory` for the card's out-of-memory error, `other` for everything else.
        text: The exception as one line.
        line: Line of the cell or script where it was raised, or None.
    """

    kind: Kind
    text: str
    line: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"{self.text} (line {self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One run on the virtual card, and whether it would fit.

    The run has all the memory that it requests.

    Attributes:
        value: Of the variable; None where none is varied.
        fits: Whether the card with its margin has room for it.
        allocated: Peak allocated bytes, if the card had no end.
        reserved: Peak reserved bytes; on the card if it fits there, else if it had no end.
        process: Peak bytes of the process, as nvidia-smi counts them; likewise.
        wanted: Peak bytes of the process if the card had no end: with less, torch has to give
            cached segments back.
        phase: Where the allocated peak was, or None outside of a phase.
        held: Bytes by category at the allocated peak, the active ones: they add up to `allocated`
            plus what is pending.
        failure: Why it does not fit or did not run; with kind `other` the figures end there.
        seconds: How long it took here.
        notes: What the recording or the remedy had to say.
        sent: Bytes that the last step's collectives were called with, by kind, at their larger
            side; empty for a program of one process.
    """

    value: int | None
    fits: bool
    allocated: int
    reserved: int
    process: int
    wanted: int
    phase: str | None
    held: Mapping[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    sent: Mapping[str, int] = field(default_factory=dict)

    @property
    def need(self) -> int:
        """Process bytes taken if the run fits, or else requested."""
        return self.process if self.fits else self.wanted

    @property
    def ran(self) -> bool:
        """True if the figures are those of a whole run."""
        return self.failure is None or self.failure.kind == "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A line fitted to one category's bytes: a fixed part and one per unit.

    Attributes:
        name: The category's label, or `allocated` for their sum.
        fixed: Bytes at value 0 of the line.
        each: Bytes for each unit of the variable.
        square: Bytes for each unit squared; 0 unless a straight line misses the points by much.
        residual: Largest distance of a point from it, in bytes.
    """

    name: str
    fixed: float
    each: float
    square: float
    residual: float

    def at(self, value: float) -> float:
        """Return the bytes that the fitted line has at a value."""
        return self.fixed + self.each * value + self.square * value * value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The largest value of a variable with which a program fits on a card.

    Attributes:
        title: The cell's or script's name.
        variable: The varied name.
        card: The card.
        best: The largest value found that fits; None if none does.
        limit: The next value in the program's steps, which does not fit; None if all do.
        low: Smallest value that was looked at.
        high: Largest value that was allowed; None without a bound.
        step: Smallest distance of two values that are distinguished.
        probes: Every run, by value.
        total: The line through the allocated peaks; None with fewer than three points.
        parts: The same for each category, the largest share at `best` first.
        sentences: The verdict and what to know about it, one sentence each.
    """

    title: str
    variable: str
    card: CardFigures
    best: int | None
    limit: int | None
    low: int
    high: int | None
    step: int
    probes: tuple[Probe, ...]
    total: Part | None
    parts: tuple[Part, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of a plan: the program under a remedy.

    The figures are of a run on the virtual card, or are predicted.

    Attributes:
        key: The remedy's key, or two joined by `+`; `as it is` for the program itself.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste.
        probe: Its run; None where it was not run.
        saved: Allocated bytes less than as it is.
        saved_reserved: Reserved bytes less than as it is.
        largest: Largest value of the variable with which it fits, or None.
        why_not: Why it could not be applied, or None.
        foreseen: Bytes of the process, from the ledger of the program as it is; None where nothing
            is known of it. With a run it is what was foreseen.
        cheapest: Whether it is the cheapest that makes the program fit.
        diff: What changes in the program's source, as a unified diff without a head; empty where it
            is not known where the lines belong.
    """

    key: str
    title: str
    price: str
    code: str
    probe: Probe | None
    saved: int = 0
    saved_reserved: int = 0
    largest: int | None = None
    why_not: str | None = None
    foreseen: int | None = None
    cheapest: bool = False
    diff: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A program under every remedy that is known.

    Attributes:
        title: The cell's or script's name.
        card: The card.
        target: Bytes of the process that are wanted; the card less its margin by default.
        variable: The batch variable that `largest` is about, or None.
        value: What it is in the program.
        options: The program as it is, then the remedies by what they save, then those foreseen and
            not run, then those not applied.
        sentences: The verdict and what to know about it.
    """

    title: str
    card: CardFigures
    target: int
    variable: str | None
    value: int | None
    options: tuple[Option, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of a model; bytes, of what itself holds and not its children.

    Attributes:
        name: Its dotted name in the model.
        kind: Its class.
        formula: Its parameters by the textbook, with this layer's numbers.
        parameters: How many; tied ones count at their first layer.
        weights: Bytes of parameters.
        buffers: Bytes of buffers.
        gradients: Bytes of the gradients of those that are trained.
        optimizer: Bytes of optimizer state.
        saved: Bytes that autograd keeps from forward for backward; None without an input.
        output: Bytes of the layer's output; None without an input.
        forward_flops: Floating point operations forward; None without an input.
        backward_flops: The same backward.
    """

    name: str
    kind: str
    formula: str
    parameters: int
    weights: int
    buffers: int
    gradients: int
    optimizer: int
    saved: int | None = None
    output: int | None = None
    forward_flops: int | None = None
    backward_flops: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A model layer by layer.

    Attributes:
        title: The model's name and class.
        rows: In the model's own order.
        optimizer: Which optimizer the state is of, in words.
        shape: Of the input, in words; None where none was given.
        sentences: What to know about it.
    """

    title: str
    rows: tuple[LayerRow, ...]
    optimizer: str
    shape: str | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A program on a number of cards, as it is or under a parallelism.

    Attributes:
        ranks: Cards, one for each rank; 1 for the program that makes no process group.
        key: The parallelism's key; `as it is` for the program itself.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste; empty for the program itself.
        diff: What changes in its source, as in `Option`.
        probe: Its run, as the rank that has most; None where there was none.
        why_not: Why it was not run or could not be applied, or None.
        cheapest: Whether it communicates least of those that fit on the fewest cards.
    """

    ranks: int
    key: str
    title: str
    price: str = ""
    code: str = ""
    diff: str = ""
    probe: Probe | None = None
    why_not: str | None = None
    cheapest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """A program's runs on more and more cards.

    Attributes:
        title: The program's.
        card: Each rank's.
        runs: Ranks of each world, ascending, and the run of the one that takes most; of several
            ways, the one that communicates least of those that fit, else takes least.
        sentences: The verdict and what to know about it.
        ways: Every way that was tried or thought of, by world; empty where there is one alone.
    """

    title: str
    card: CardFigures
    runs: tuple[tuple[int, Probe], ...]
    sentences: tuple[str, ...]
    ways: tuple[Way, ...] = ()

    @property
    def fewest(self) -> int | None:
        """The smallest world in which the program fits; None if it fits in none."""
        return next((ranks for ranks, probe in self.runs if probe.fits), None)
