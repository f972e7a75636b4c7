"""Write what language models take as JSON, in stable forms.

Keys are added in later versions, never renamed or removed. Amounts are bytes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmem.report.language_results import ContextFit, MemoryPart, ModelEstimate


def model_json(estimate: ModelEstimate) -> dict[str, Any]:
    """Return the result of `nbmem.estimate_model` as JSON.

    `parts` {part: bytes}, which add up to `allocated`; `card` {name, total, margin, driver};
    `cards` as `would_run_on` of a report; `fits` is null where that is not decided.
    """
    names = ("title", "model", "method", "seq", "batch", "parameters", "trained", "fits", "phase",
             "allocated", "reserved", "process", "program", "sentences")  # fmt: skip
    return {
        **{name: getattr(estimate, name) for name in names},
        "card": asdict(estimate.card),
        "parts": _sizes(estimate.parts),
        "cards": tuple(map(asdict, estimate.cards)),
    }


def context_json(fit: ContextFit) -> dict[str, Any]:
    """Return the result of `nbmem.fit_context` as JSON.

    `rows` {batch, seq (null where none fits), process, limited}; `fixed` {part: bytes} and
    `per_token` {part: bytes of one token more}; `card` {name, total, margin, driver}.
    """
    names = ("title", "model", "method", "step", "runs", "replayed", "program", "sentences")
    return {
        **{name: getattr(fit, name) for name in names},
        "card": asdict(fit.card),
        "rows": tuple(map(asdict, fit.rows)),
        "fixed": _sizes(fit.fixed),
        "per_token": _sizes(fit.per_token),
    }


def _sizes(parts: Iterable[MemoryPart]) -> dict[str, int]:
    return {part.name: part.size for part in parts}
