"""Results about language models: figures that are ready to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.report.estimate_results import CardFigures
    from nbmem.report.model import CardFit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """A part of what is allocated at the peak.

    Attributes:
        name: The thing: `weights`, `logits`.
        size: Its bytes.
        what: What it includes, in a few words; empty where the name says it.
    """

    name: str
    size: int
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimate:
    """The memory of a language model under one method.

    Attributes:
        title: The model and what is done with it.
        model: The model's name.
        method: One of full, lora, qlora, generate.
        seq: Tokens of a sequence.
        batch: Sequences at a time.
        parameters: The model's parameters, without adapters.
        trained: Parameters that are trained; 0 for generation.
        card: The card on which it was run.
        fits: Whether it fits there with the margin; None if that is not decided.
        phase: Phase of the peak, or None outside of one.
        parts: What is on the card at the peak, tensors first; they add up to `allocated`.
        allocated: Peak allocated bytes.
        reserved: Peak bytes that torch holds from the driver, its cache included.
        process: Peak bytes of the process, as nvidia-smi shows them.
        cards: Cards, the smallest first, and whether it would run there.
        program: The program that was run.
        sentences: What to know about it, one sentence each.
    """

    title: str
    model: str
    method: str
    seq: int
    batch: int
    parameters: int
    trained: int
    card: CardFigures
    fits: bool | None
    phase: str | None
    parts: tuple[MemoryPart, ...]
    allocated: int
    reserved: int
    process: int
    cards: tuple[CardFit, ...]
    program: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """The longest context that fits with one batch.

    Attributes:
        batch: Sequences at a time.
        seq: Tokens of each up to which it fits; None if not even the shortest that was tried does.
        process: Peak bytes of the process there.
        limited: Whether the model's own positions end there, and not the card.
    """

    batch: int
    seq: int | None
    process: int | None
    limited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFit:
    """The longest contexts of a model on a card, by batch.

    Attributes:
        title: The model and what is done with it, or the user's program.
        card: The card.
        step: Tokens between two lengths that were tried.
        rows: By batch.
        fixed: What is there whatever the length: weights, optimizer state.
        per_token: Bytes that one more token of one sequence takes, by part.
        per_pair: Bytes that each pair of tokens takes beside that, by part: attention's scores and
            masks, where a kernel does not do without them.
        runs: How many lengths were run.
        replayed: How many were decided by replaying the requests of these runs.
        model: The model's name; empty for a program of the user's.
        method: One of full, lora, qlora, generate; empty for a program of the user's.
        program: The program, with the longest context of the first row; empty for the user's own.
        sentences: What to know about it, one sentence each.
    """

    title: str
    card: CardFigures
    step: int
    rows: tuple[ContextRow, ...]
    fixed: tuple[MemoryPart, ...]
    per_token: tuple[MemoryPart, ...]
    per_pair: tuple[MemoryPart, ...]
    runs: int
    replayed: int
    model: str = ""
    method: str = ""
    program: str = ""
    sentences: tuple[str, ...] = ()
