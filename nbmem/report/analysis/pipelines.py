"""Find the weights of a diffusers pipeline's models, which take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.report.ledger.card_ledger import CardLedger

OF_WEIGHTS = Category.WEIGHTS, Category.BUFFERS
MIN_MODELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline of several models.

    Attributes:
        name: The program's name for it.
        offloaded: Whether it moves its models to the card by itself.
        models: The bytes of each model, by its name in the recording.
        classes: The class of each model, by its name.
        is_float32: Whether all weights are in float32.
    """

    name: str
    offloaded: bool
    models: dict[str, int]
    classes: dict[str, str]
    is_float32: bool

    @property
    def size(self) -> int:
        """Bytes of all its models."""
        return sum(self.models.values())

    @property
    def largest(self) -> int:
        """Bytes of its largest model."""
        return max(self.models.values(), default=0)

    def model_of(self, path: str | None) -> str | None:
        """Return the name of the model that a path leads through, or None."""
        return next((one for one in self.models if f"{path}.".startswith(f"{one}.")), None)

    def running(self, layer: str | None) -> str | None:
        """Return the model of a running layer, or None.

        A layer's path begins with the class of its model if no variable has the model.
        """
        path = (layer or "").partition(" ")[0]
        kinds = [one for one, kind in self.classes.items() if kind == path.partition(".")[0]]
        return self.model_of(path) or (kinds[0] if len(kinds) == 1 else None)

    def listed(self) -> str:
        """List the models with their bytes, the largest first."""
        by_size = sorted(self.models, key=self.models.__getitem__, reverse=True)
        return ", ".join(f"{one} {format_bytes(self.models[one])}" for one in by_size)


def pipelines_of(card_ledger: CardLedger) -> list[Pipeline]:
    """List the recorded pipelines that have several models."""
    found = [
        Pipeline(
            name=str(one["name"]),
            offloaded=bool(one["offloaded"]),
            models={str(m["module"]): int(m["bytes"]) for m in one["models"] if m["bytes"]},
            classes={str(m["module"]): str(m["class"]) for m in one["models"] if m["bytes"]},
            is_float32=all(m["float32_bytes"] == m["bytes"] for m in one["models"]),
        )
        for one in card_ledger.session.facts.get("pipelines") or []
    ]
    return [one for one in found if len(one.models) >= MIN_MODELS]


def rows_by_model(card_ledger: CardLedger, pipeline: Pipeline, position: int) -> dict[str, Ints]:
    """Return the weights of each model that live at a position, by row."""
    rows = card_ledger.live(position)
    rows = rows[np.isin(card_ledger.category[rows], OF_WEIGHTS)]
    names = [pipeline.model_of(card_ledger.name(row)) for row in rows.tolist()]
    return {
        one: rows[np.array([name == one for name in names], bool)] if names else rows
        for one in pipeline.models
    }


def is_first_call(card_ledger: CardLedger, layer: str | None, position: int) -> bool:
    """Return whether a pipeline's model is called for the first time.

    Earlier steps are other models' calls, so this one does not go on as they did.

    Args:
        card_ledger: The card's ledger.
        layer: The running layer.
        position: The event at which it runs.
    """
    models = [(one, one.running(layer)) for one in pipelines_of(card_ledger)]
    running = next(((one, name) for one, name in models if name is not None), None)
    calls = card_ledger.trace.calls
    if running is None or calls is None:
        return False
    pipeline, name = running
    names = {index: card_ledger.session.names[index] for index in np.unique(calls.name).tolist()}
    of_model = [index for index, called in names.items() if pipeline.model_of(called) == name]
    return not (np.isin(calls.name, of_model) & (calls.last < position)).any()


def offloaded_peak(card_ledger: CardLedger, pipeline: Pipeline) -> int | None:
    """Return the allocated peak with only the running model on the card.

    A model comes when it is called, and goes when the next one is. None where no call is known, or
    where the weights on the card are not those of the pipeline.
    """
    calls, a = card_ledger.trace.calls, card_ledger.allocations
    rows = np.flatnonzero(np.isin(card_ledger.category, OF_WEIGHTS))
    models = [pipeline.model_of(card_ledger.name(row)) is not None for row in rows.tolist()]
    rows = rows[np.array(models, bool)]
    if calls is None or not len(rows):
        return None
    curve = card_ledger.allocated_without(rows, a.allocated_at[rows])
    names = card_ledger.session.names
    owners = {index: pipeline.model_of(names[index]) for index in np.unique(calls.name).tolist()}
    order = np.argsort(calls.last, kind="stable")
    most, begin = int(curve.max()), 0
    for last, index in zip(calls.last[order].tolist(), calls.name[order].tolist(), strict=True):
        name = owners[index]
        if name is not None:
            most = max(most, int(curve[begin : last + 1].max()) + pipeline.models[name])
        begin = last
    return most if any(owners.values()) else None
