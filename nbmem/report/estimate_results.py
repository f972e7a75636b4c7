"""Results of fit, plan and layers: figures that are ready to draw.

`nbmem/estimates`, a layer above the views, computes them. The classes are here, a layer below the
views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nbmem.core.session.engines import RULES
from nbmem.core.units import format_bytes

Kind = Literal["memory", "other"]
MARGIN = 0.02
"""Part of the card to keep free. docs/accuracy.md shows how many of the 35 runs recorded on a real
card exceeded the prediction by at most that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """The card of an estimate, in bytes.

    Attributes:
        name: As the driver reports it.
        total: Bytes that CUDA can allocate.
        margin: Bytes left free for the error of the estimate.
        driver: Bytes that the driver reserves; included in nvidia-smi's total.
        engine: What makes the figures: `rules` or `torch`.
    """

    name: str
    total: int
    margin: int
    driver: int
    engine: str = RULES

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

    Memory is unlimited in the run.

    Attributes:
        value: The variable's value; None if none is varied.
        fits: Whether it fits on the card with its margin.
        allocated: Peak allocated bytes on a card without limit.
        reserved: Peak reserved bytes; on the card if it fits there, else without limit.
        process: Peak bytes of the process, as nvidia-smi counts them; on the same card.
        wanted: Peak bytes of the process on a card without limit; with less, torch has to release
            cached segments.
        phase: Phase of the allocated peak, or None outside of a phase.
        held: Bytes by active category at the allocated peak. They add up to `allocated` plus what
            is pending.
        failure: Why it does not fit or did not run; the figures end there if its kind is `other`.
        seconds: Duration of the run here.
        notes: Notes of the recording or of the remedy.
        sent: Bytes passed to the last step's collectives, by kind, at their larger side; empty for
            a program of one process.
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
        each: Bytes per unit of the variable.
        square: Bytes per unit squared; 0 unless a straight line misses the points by much.
        residual: Largest distance of a point from the line, in bytes.
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
        variable: Name of the varied variable.
        card: The card.
        safe: The largest value below which every value that was tried fits, whatever of the margin
            is free; None if there is none. It is the one to use.
        best: The largest value found that fits; None if none does. Values between `safe` and this
            one fit by luck.
        limit: The next value in the program's steps, which does not fit; None if all fit.
        low: Smallest value that was tried.
        high: Largest value that was allowed; None without a bound.
        step: Smallest difference between two tried values.
        probes: Every run, by value.
        total: The line through the allocated peaks; None with fewer than three points.
        parts: The line of each category, the largest share at `best` first.
        sentences: The result and what to know about it, one sentence each.
    """

    title: str
    variable: str
    card: CardFigures
    safe: int | None
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

    The figures come from a run on the virtual card, or are predicted.

    Attributes:
        key: The remedy's key, or two joined by `+`; `as it is` for the program itself.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste.
        probe: Its run; None if it was not run.
        saved: Allocated bytes less than the program itself takes.
        saved_reserved: Reserved bytes less than the program itself takes.
        largest: Value of the variable up to which it always fits (`safe` of a fit), or None.
        why_not: Why it could not be applied, or None.
        foreseen: Predicted bytes of the process, from the ledger of the program as it is; None if
            there is no prediction. It stays the prediction after a run.
        cheapest: Whether it is the cheapest that makes the program fit.
        diff: The change in the program's source as a unified diff without header; empty if the
            location of the lines is not known.
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
        target: Wanted bytes of the process; the card less its margin by default.
        variable: The batch variable that `largest` refers to, or None.
        value: Its value in the program.
        options: The program as it is, then the remedies by savings, then those only predicted, then
            those not applied.
        sentences: The result and what to know about it.
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
        formula: Its textbook parameter formula, with this layer's numbers.
        parameters: Number of parameters; tied ones count at their first layer.
        weights: Bytes of parameters.
        buffers: Bytes of buffers.
        gradients: Bytes of the gradients of trained parameters.
        optimizer: Bytes of optimizer state.
        saved: Bytes that autograd saves in forward for backward; None without an input.
        output: Bytes of the layer's output; None without an input.
        forward_flops: Floating point operations forward; None without an input.
        backward_flops: Floating point operations backward; None without an input.
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
        optimizer: The optimizer of the state, in words.
        shape: Shape of the input, in words; None if none was given.
        sentences: What to know about it.
        engine: What makes the figures: `rules` or `torch`.
    """

    title: str
    rows: tuple[LayerRow, ...]
    optimizer: str
    shape: str | None
    sentences: tuple[str, ...]
    engine: str = RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A program on a number of cards, as it is or under a parallelism.

    Attributes:
        ranks: Number of cards, one per rank; 1 for a program without process group.
        key: The parallelism's key; `as it is` for the program itself.
        title: What is done.
        price: What it costs, in words.
        code: The lines to paste; empty for the program itself.
        diff: What changes in its source, as in `Option`.
        probe: Its run, for the rank with the most memory; None if there was none.
        why_not: Why it was not run or could not be applied, or None.
        cheapest: Whether it communicates least of the options that fit on the fewest cards.
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
        title: The program's title.
        card: The card of each rank.
        runs: For each world size, ascending, the run of the rank with the most memory. Of several
            parallelisms: the one that fits and communicates least, else the smallest.
        sentences: The result and what to know about it.
        ways: Every parallelism that was tried or considered, by world; empty if there is only one.
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
