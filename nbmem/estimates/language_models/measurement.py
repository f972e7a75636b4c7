"""Run a language model's program on a virtual card, and name its bytes.

This runs in the process of the estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmem.core.errors import UsageError
from nbmem.core.session.categories import ACTIVE, Category
from nbmem.core.session.tensor_parts import (
    BASE,
    FROZEN,
    KV_CACHE,
    LOGITS,
    OTHER,
    TRAINED,
)
from nbmem.estimates.programs.token_shapes import TokenShapes
from nbmem.estimates.questions.card_table import decide, endless
from nbmem.estimates.runs.probe_run import Request, probe, record_requests
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.moments import phase_at
from nbmem.report.language_results import MemoryPart
from nbmem.virtual.warnings import COMPILE_LATER

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_sequence import RequestSequence
    from nbmem.estimates.programs.programs import Program
    from nbmem.report.estimate_results import Probe
    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import CardFit
    from nbmem.virtual.cards import Card

_NO_LOGITS = frozenset(
    {
        Category.WEIGHTS,
        Category.BUFFERS,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
        Category.INPUTS,
    }
)
_COPY = "saved by "
"""Begin of the name of autocast's copy of a weight, which may be as large as the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """A model's sizes that are not those of one tensor.

    Attributes:
        parameters: How many it has.
        vocabulary: Words of its vocabulary.
    """

    parameters: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a program on a card without a limit.

    Attributes:
        sizes: The model's sizes.
        parts: What is allocated at the peak.
        allocated: Peak allocated bytes.
        reserved: Peak reserved bytes.
        process: Peak bytes of the process.
        phase: Phase of the peak.
        cards: Whether it would run on the cards that were asked for.
        requests: What it requested, to be replayed with other sizes.
        eager: Whether functions that it compiles ran eagerly.
    """

    sizes: ModelSizes
    parts: tuple[MemoryPart, ...]
    allocated: int
    reserved: int
    process: int
    phase: str | None
    cards: tuple[CardFit, ...]
    requests: tuple[RequestSequence, ...]
    eager: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """One run of a model's program.

    Attributes:
        source: The program.
        config: The expression of its model's configuration.
        card: The kind of card; the run is on one without a limit.
        tokens: Tokens of which it makes logits at a time.
        others: Cards to decide by the recorded requests.
        margin: Part of each that is to stay free.
    """

    source: str
    config: str
    card: Card
    tokens: int
    others: tuple[Card, ...] = ()
    margin: float = 0.0


def measure(program: Program, step: ModelStep) -> Measured:
    """Run a model's program once on a card without a limit.

    Raises:
        UsageError: The model cannot be built, or its program fails.
    """
    sizes = _sizes(step.config)
    source = replace(program, source=step.source)
    found, measured = _measured(source, step.card, None, lambda: (step.tokens, sizes.vocabulary))
    cards = decide(found, step.card, step.others, step.margin) if step.others else ()
    return replace(measured, sizes=sizes, cards=cards)


def measure_shape(
    program: Program, card: Card, batch: int | None, seq: int | None
) -> tuple[TokenShapes, Measured]:
    """Run a program of the user's once, with other sequences than its own.

    Args:
        program: The program.
        card: The kind of card; the run is on one without a limit.
        batch: Sequences at a time; None for its own.
        seq: Tokens of each; None for its own.

    Raises:
        UsageError: The program fails.
    """
    shapes = TokenShapes(batch=batch, seq=seq)
    shaped = replace(program, shapes=shapes)
    return shapes, _measured(shaped, card, seq, lambda: (shapes.tokens, shapes.vocabulary))[1]


def _measured(
    program: Program, card: Card, value: int | None, logits: Callable[[], tuple[int, int]]
) -> tuple[CardLedger, Measured]:
    """Run a program on a card without a limit, and read its peak.

    Args:
        program: The program.
        card: The kind of card.
        value: Of its variable, or None.
        logits: Called after the run: the rows and the columns of its logits.
    """
    session, requests = record_requests(
        program, Request(card=endless(card), value=value), look=False
    )
    if session.error is not None:
        raise UsageError(f"The program fails on the virtual card: {session.error}.")
    found = card_ledger_of(session, None)
    at = int(np.argmax(found.allocated))
    reserved = int(found.reserved.max())
    ledger = found.ledger(at)
    return found, Measured(
        sizes=ModelSizes(parameters=0, vocabulary=0),
        parts=merged(_parts(found, at, *logits())),
        allocated=ledger.allocated,
        reserved=reserved,
        process=reserved + int(ledger[Category.CONTEXT]),
        phase=phase_at(found, at).phase,
        cards=(),
        requests=requests,
        eager=COMPILE_LATER in session.notes,
    )


def run_on_card(program: Program, source: str, request: Request) -> Probe:
    """Run a program on a card with its limit."""
    return probe(replace(program, source=source), request).probe


def _made(config: str) -> Any:
    """Evaluate the expression of a model's configuration.

    Raises:
        UsageError: transformers refuses it.
    """
    from transformers import AutoConfig

    try:
        return eval(config, {"AutoConfig": AutoConfig})  # noqa: S307 - written by models.py
    except Exception as err:  # noqa: BLE001 - whatever transformers raises
        raise _refused(config, err) from None


def _refused(config: str, err: Exception) -> UsageError:
    return UsageError(
        f"transformers cannot build a language model of {config}: {type(err).__name__}: {err}"
    )


def positions_of(_program: Program, config: str) -> int | None:
    """Return how many positions a model has; None if it has no bound.

    Raises:
        UsageError: transformers refuses the configuration.
    """
    found = getattr(_made(config).get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _sizes(config: str) -> ModelSizes:
    """Build a model without memory, and count.

    Raises:
        UsageError: transformers cannot build it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    made = _made(config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(made)
    except Exception as err:  # noqa: BLE001 - whatever transformers raises
        raise _refused(config, err) from None
    return ModelSizes(
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=made.get_text_config().vocab_size,
    )


def _parts(found: CardLedger, at: int, tokens: int, vocabulary: int) -> Iterator[MemoryPart]:
    """Yield what is allocated at a moment; the parts add up to it.

    A category's own parts (adapters, the KV cache) stand for themselves, and so do logits, whatever
    their category is.
    """
    ledger = found.ledger(at)
    logits = _logits(found, at, tokens, vocabulary)
    for category in ACTIVE:
        if category is Category.PENDING:  # freed, and only waits for another stream
            continue
        left = ledger[category] - logits[category]
        for name, size in ledger.parts_of(category):
            if name != OTHER and (name != LOGITS or not vocabulary):
                left -= size
                yield MemoryPart(name=_part_name(category, name), size=size)
        yield MemoryPart(name=category.label, size=left)
    yield MemoryPart(name=LOGITS, size=sum(logits.values()))


def _part_name(category: Category, part: str) -> str:
    """Return the name of a category's part: `weights, 4-bit`, `adapters`."""
    if not part.startswith((BASE, FROZEN, TRAINED)):
        return KV_CACHE if part.startswith(KV_CACHE) else part
    bits = part.removeprefix(BASE).strip()
    return f"{category.label}, {bits}" if bits else category.label


def _logits(found: CardLedger, at: int, tokens: int, vocabulary: int) -> Counter[Category]:
    """Return the bytes of logits and their gradients at a moment, by category.

    They are known by their size: a number for each token and word, in two or four bytes.
    """
    whole = {tokens * vocabulary * each for each in (2, 4)}
    sums: Counter[Category] = Counter()
    for row in found.live(at).tolist():
        size, category = int(found.allocations.requested[row]), Category(int(found.category[row]))
        named = size in whole and category not in _NO_LOGITS
        if named and not (found.name(row) or "").startswith(_COPY):
            sums[category] += size
    return sums


def merged(parts: Iterable[MemoryPart]) -> tuple[MemoryPart, ...]:
    """Add up parts of one name, and leave out those without bytes."""
    sums: Counter[str] = Counter()
    for part in parts:
        sums[part.name] += part.size
    return tuple(MemoryPart(name=name, size=size) for name, size in sums.items() if size)
