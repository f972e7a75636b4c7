"""Find what a diffusers pipeline takes with one model on the card at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.report.analysis.pipelines import OF_WEIGHTS, Pipeline, pipelines_of

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence


def loaded_pipelines(e: Evidence) -> list[Pipeline]:
    """List the pipelines that have all their models on the card."""
    return [one for one in pipelines_of(e.card_ledger) if not one.offloaded]


def peak_in_turns(e: Evidence, pipeline: Pipeline) -> int | None:
    """Return the allocated peak with only the running model on the card.

    A model comes when it is called, and goes when the next one is. None where no call is known, or
    where the weights on the card are not those of the pipeline.
    """
    ledger, calls = e.card_ledger, e.trace.calls
    rows = np.flatnonzero(np.isin(ledger.category, OF_WEIGHTS))
    models = [pipeline.model_of(ledger.name(row)) for row in rows.tolist()]
    rows = rows[np.array([name is not None for name in models], bool)] if models else rows
    if calls is None or not len(calls) or int(ledger.allocations.requested[rows].sum()) == 0:
        return None
    curve = e.allocated_without(rows)
    owner = {i: pipeline.model_of(e.session.names[i]) for i in np.unique(calls.name).tolist()}
    order = np.argsort(calls.last, kind="stable")
    most, begin = int(curve.max()), 0
    called = False
    for last, index in zip(calls.last[order].tolist(), calls.name[order].tolist(), strict=True):
        name = owner[index]
        if name is not None:
            called = True
            most = max(most, int(curve[begin : last + 1].max()) + pipeline.models[name])
        begin = last
    return most if called else None
