"""Write the results of estimates as JSON, in stable forms.

Keys are added in later versions, never renamed or removed. They are fixed here, independently of
the attributes' names. Amounts are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.report.card_choice import SuitableCards
    from nbmem.report.estimate_results import (
        CardFigures,
        Fit,
        LayerRow,
        Layers,
        Option,
        Part,
        Plan,
        Probe,
        Worlds,
    )
    from nbmem.report.language_results import ContextFit, MemoryPart, ModelEstimate


def fit_json(fit: Fit) -> dict[str, Any]:
    """Return the result of `nbmem.fit` as JSON.

    `card` {name, total, margin, driver, engine}; `best` (the largest that fits), `safe` (the
    largest below which all fit) and `limit`, null where there is none; `total` and `parts`
    {name, fixed, each, square, residual} in bytes and bytes for each unit; `probes` by value
    {value, fits, allocated, reserved, process, wanted, phase, held, failure {kind, text, line}}.
    """
    return {
        "title": fit.title,
        "variable": fit.variable,
        "card": _card(fit.card),
        "best": fit.best,
        "safe": fit.safe,
        "limit": fit.limit,
        "low": fit.low,
        "high": fit.high,
        "step": fit.step,
        "probes": tuple(map(_probe, fit.probes)),
        "total": None if fit.total is None else _part(fit.total),
        "parts": tuple(map(_part, fit.parts)),
        "sentences": fit.sentences,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the result of `nbmem.plan` as JSON.

    `card` {name, total, margin, driver}; `target`; `variable` and `value`, null where the batch is
    not known; `options`, the program as it is first, {key, title, price, code, probe (as in the
    JSON of fit; null if not run), saved, saved_reserved, largest, why_not, foreseen (of the
    process; null if nothing is known), cheapest, diff (of the source; empty if not known)}.
    """
    return {
        "title": plan.title,
        "card": _card(plan.card),
        "target": plan.target,
        "variable": plan.variable,
        "value": plan.value,
        "options": tuple(map(_option, plan.options)),
        "sentences": plan.sentences,
    }


def worlds_json(worlds: Worlds) -> dict[str, Any]:
    """Return the result of `nbmem.plan` over several worlds as JSON.

    `card` and `runs` {ranks, and what a probe of `fit` has}, with `sent` {kind: bytes of a step};
    `fewest` ranks that fit, null where none does; `ways` {ranks, key, title, price, code, diff,
    probe (null if not run), why_not, cheapest} of a program that is written for one card.
    """
    ways = tuple(
        {
            **{name: getattr(way, name) for name in ("ranks", "key", "title", "price", "code")},
            "diff": way.diff,
            "probe": None if way.probe is None else _probe(way.probe),
            "why_not": way.why_not,
            "cheapest": way.cheapest,
        }
        for way in worlds.ways
    )
    return {
        "title": worlds.title,
        "card": _card(worlds.card),
        "fewest": worlds.fewest,
        "runs": tuple({"ranks": ranks, **_probe(probe)} for ranks, probe in worlds.runs),
        "ways": ways,
        "sentences": worlds.sentences,
    }


def layers_json(layers: Layers) -> dict[str, Any]:
    """Return the result of `nbmem.layers` as JSON.

    `rows`, a list of {name, kind, formula, parameters, weights, buffers, gradients, optimizer,
    saved, output, forward_flops, backward_flops}, null where it needs an input and there was none.
    """
    return {
        "title": layers.title,
        "rows": tuple(map(layer_json, layers.rows)),
        "optimizer": layers.optimizer,
        "shape": layers.shape,
        "sentences": layers.sentences,
        "engine": layers.engine,
    }


def layer_json(row: LayerRow) -> dict[str, Any]:
    """Return one layer as JSON; also a row of the DataFrame."""
    return {
        "name": row.name,
        "kind": row.kind,
        "formula": row.formula,
        "parameters": row.parameters,
        "weights": row.weights,
        "buffers": row.buffers,
        "gradients": row.gradients,
        "optimizer": row.optimizer,
        "saved": row.saved,
        "output": row.output,
        "forward_flops": row.forward_flops,
        "backward_flops": row.backward_flops,
    }


def model_json(estimate: ModelEstimate) -> dict[str, Any]:
    """Return the result of `nbmem.estimate_model` as JSON.

    `parts` {part: bytes}, which add up to `allocated`; `card` {name, total, margin, driver};
    `cards` as `would_run_on` of a report; `fits` is null where that is not decided.
    """
    names = ("title", "model", "method", "seq", "batch", "parameters", "trained", "fits", "phase",
             "allocated", "reserved", "process", "program", "sentences")  # fmt: skip
    return {
        **{name: getattr(estimate, name) for name in names},
        "card": _card(estimate.card),
        "parts": _sizes(estimate.parts),
        "cards": tuple(map(asdict, estimate.cards)),
    }


def context_json(fit: ContextFit) -> dict[str, Any]:
    """Return the result of `nbmem.fit_context` as JSON.

    `rows` {batch, seq (null where none fits), process, limited}; `fixed` {part: bytes},
    `per_token` {part: bytes of one token more} and `per_pair` {part: bytes of each pair of tokens};
    `card` {name, total, margin, driver}. `model`, `method` and `program` are empty for a program of
    the user's.
    """
    names = ("title", "model", "method", "step", "runs", "replayed", "program", "sentences")
    return {
        **{name: getattr(fit, name) for name in names},
        "card": _card(fit.card),
        "rows": tuple(map(asdict, fit.rows)),
        "fixed": _sizes(fit.fixed),
        "per_token": _sizes(fit.per_token),
        "per_pair": _sizes(fit.per_pair),
    }


def cards_json(choice: SuitableCards) -> dict[str, Any]:
    """Return the result of `nbmem.plan` for all cards as JSON.

    `cards` as `would_run_on` of a report; `card` {name, total, margin, driver} of the run.
    """
    names = ("title", "allocated", "process", "sentences")
    return {
        **{name: getattr(choice, name) for name in names},
        "card": _card(choice.card),
        "cards": tuple(map(asdict, choice.cards)),
    }


def _sizes(parts: Iterable[MemoryPart]) -> dict[str, int]:
    return {part.name: part.size for part in parts}


def _card(card: CardFigures) -> dict[str, Any]:
    return {
        "name": card.name,
        "total": card.total,
        "margin": card.margin,
        "driver": card.driver,
        "engine": card.engine,
    }


def _probe(probe: Probe) -> dict[str, Any]:
    """Return one run as JSON, without its varying duration."""
    failure = probe.failure
    return {
        "value": probe.value,
        "fits": probe.fits,
        "allocated": probe.allocated,
        "reserved": probe.reserved,
        "process": probe.process,
        "wanted": probe.wanted,
        "phase": probe.phase,
        "held": dict(probe.held),
        "failure": None
        if failure is None
        else {"kind": failure.kind, "text": failure.text, "line": failure.line},
        "notes": probe.notes,
        "sent": dict(probe.sent),
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "fixed": part.fixed,
        "each": part.each,
        "square": part.square,
        "residual": part.residual,
    }


def _option(option: Option) -> dict[str, Any]:
    return {
        "key": option.key,
        "title": option.title,
        "price": option.price,
        "code": option.code,
        "probe": None if option.probe is None else _probe(option.probe),
        "saved": option.saved,
        "saved_reserved": option.saved_reserved,
        "largest": option.largest,
        "why_not": option.why_not,
        "foreseen": option.foreseen,
        "cheapest": option.cheapest,
        "diff": option.diff,
    }
