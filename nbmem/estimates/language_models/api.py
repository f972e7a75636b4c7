"""Ask about a language model from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.estimates.answers import ContextAnswer, ModelAnswer, to_displayed
from nbmem.estimates.language_models import context, question
from nbmem.estimates.language_models.settings import Settings, settings_of
from nbmem.estimates.options import with_length
from nbmem.report.estimate_results import MARGIN

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program


def silent(_text: str) -> None:
    """Ignore the line about a run."""


def estimate_model(  # noqa: PLR0913 - the question's parts
    model: str,
    gpu: str | None = None,
    *,
    method: str = "lora",
    seq: int | None = None,
    batch: int = 1,
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
    **options: Any,
) -> ModelAnswer:
    """Estimate what a language model takes, without code and download.

    A short program of transformers and peft runs on a virtual card.

    Args:
        model: A published name (`llama-3.1-8b`), a config.json or its folder, or a class of
            transformers.
        gpu: Name of a card, or `all` for every card of the table; None for the one in use, else a
            virtual H100.
        method: `full`, `lora`, `qlora` or `generate`.
        seq: Tokens of a sequence; for generation, of the prompt and the answer together; None for
            2048, or fewer where the model has fewer positions.
        batch: Sequences at a time.
        margin: Part of a card to keep free.
        tell: Called with a line of text after every run.
        options: `dtype`, `optimizer`, `checkpointing`, `autocast`, `rank`, `targets`, `bits`, as in
            `nbmem.estimates.language_models.settings.Settings`.

    Raises:
        NbmemError: The model is not known or cannot be built, or there is no such card.
    """
    settings = settings_of(model, method=method, seq=seq, batch=batch, **options)
    return model_answer(settings, gpu, margin=margin, tell=tell)


def model_answer(
    settings: Settings,
    gpu: str | None = None,
    *,
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
) -> ModelAnswer:
    """Estimate what a language model takes, from checked settings."""
    return to_displayed(
        ModelAnswer, question.estimate_model(settings, gpu, margin=margin, tell=tell)
    )


def fit_context(  # noqa: PLR0913 - the question's parts
    model: str,
    gpu: str | None = None,
    *,
    method: str = "lora",
    batches: Sequence[int] = (1, 2, 4, 8),
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
    **options: Any,
) -> ContextAnswer:
    """Find the longest context of a language model that fits, by batch.

    Args:
        model: As for `estimate_model`.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        method: `full`, `lora`, `qlora` or `generate`.
        batches: Sequences at a time.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.
        options: As for `estimate_model`.

    Raises:
        NbmemError: The model is not known or cannot be built, or there is no such card.
    """
    settings = settings_of(model, method=method, **options)
    return context_answer(settings, gpu, batches, margin=margin, tell=tell)


def context_answer(
    settings: Settings,
    gpu: str | None,
    batches: Sequence[int] | None,
    *,
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
) -> ContextAnswer:
    """Find the longest context by batch, from checked settings."""
    found = context.fit_context(settings, gpu, batches or context.BATCHES, margin=margin, tell=tell)
    return to_displayed(ContextAnswer, found)


def own_context_answer(  # noqa: PLR0913 - the question's parts
    program: Program,
    gpu: str | None,
    batches: Sequence[int] | None = None,
    *,
    namespace: Mapping[str, Any] | None = None,
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
    show: Callable[[ContextAnswer, str], None] = lambda _answer, _left: None,
) -> ContextAnswer:
    """Find the longest context of a cell or a script, by batch.

    Args:
        program: What `nbmem.estimates.programs` makes of it.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        batches: Sequences at a time; None for its own and the usual ones.
        namespace: The notebook's names, of a cell.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.
        show: Called after each batch with the answer so far, and with the work that is left.

    Raises:
        NbmemError: It fails, calls no model with tokens, or there is no such card.
    """
    found = context.fit_own_context(
        program,
        gpu,
        batches,
        bind=lambda seq: with_length(program, seq, namespace),
        margin=margin,
        tell=tell,
        show=lambda answer, left: show(to_displayed(ContextAnswer, answer), left),
    )
    return to_displayed(ContextAnswer, found)
