"""Try an evaluation without gradients on its failed request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.continuations.continuation import LIVE, Continuation
from nbmem.report.analysis.program_names import evaluated_model, input_wants_gradient, no_grad_code
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.trial import Outcome, Trial

_TRAINS = re.compile("_*(inner_)?(train|fit)")
"""Functions of trainers, which make their optimizer where no name leads to it."""
_NEEDED = 2
"""Activations that are there without a graph, too: a layer's input and its output."""


def without_gradients(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield torch.no_grad(), where no backward can be meant.

    The model is in eval mode, or the program has no optimizer and has run no backward. A report
    that is made before the program's names were read does not know of an optimizer that has not
    stepped yet.
    """
    seen, session = trial.case.refusal, trial.case.card_ledger.session
    rows = trial.new_rows(Category.ACTIVATIONS)[:-_NEEDED]
    if seen is None or trial.phase != "forward" or not len(rows):
        return
    optimizers = session.facts.get("optimizers")
    untrained = (
        optimizers == []
        and "backward" not in trial.case.card_ledger.phases.names.tolist()
        and not any(_TRAINS.match(frame.function) for frame in seen.stack)
    )
    if not (seen.evaluating or untrained) or input_wants_gradient(session):
        return
    why = (
        "The model is in eval mode, and its activations are kept for a backward."
        if seen.evaluating
        else "The program has no optimizer, and no backward ran: if it does not train, what it "
        "keeps for a backward is not needed."
    )
    size = trial.bytes_of(rows)
    yield (
        Finding(
            rule="no_grad_missing",
            title=f"Evaluate under torch.no_grad(): about {format_bytes(size)} less",
            evidence=f"{why} Without it the request is served.",
            **estimated(size),
            code=no_grad_code(evaluated_model(session), trains=bool(optimizers)),
        ),
        trial.now(freed=rows.tolist(), then=_without_graph(trial.then, rows.tolist())),
    )


def _without_graph(then: Continuation, rows: list[int]) -> Continuation:
    """Return what follows where no activation waits for a backward.

    Each is freed when the second one after it has been made.

    Args:
        then: What follows with a graph.
        rows: The live activations that are freed already.
    """
    freed = {*rows}
    saved = [
        at
        for at, block in enumerate(then.blocks)
        if block.saved and (block.requested_at != LIVE or block.row in freed)
    ]
    until = {
        at: then.blocks[later].requested_at + 0.25
        for at, later in zip(saved, saved[_NEEDED:], strict=False)
    }
    blocks = (
        block._replace(freed_at=max(block.requested_at, min(block.freed_at, until[at])))
        if at in until
        else block
        for at, block in enumerate(then.blocks)
        if not (block.requested_at == LIVE and block.row in freed)
    )
    return then.changed_to(tuple(blocks))
