"""Say what a model takes in fewer bits, where moving it ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.allocator.rounding import MIN_BLOCK
from nbmem.core.units import format_bytes
from nbmem.report.analysis.library_calls import library_model
from nbmem.report.analysis.oom.trial import Outcome, Trial
from nbmem.report.analysis.program_names import code_name
from nbmem.report.model import Finding
from nbmem.report.savings import exact

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest

DOMINANT = 0.5
"""Part of the allocated bytes that the moved model has at least."""
ROUNDED = 1.02
"""Reserved bytes for each byte of weights: the allocator rounds segments to 2 MiB."""
FOUR_BIT = 0.14
"""Bytes of a weight in 4 bits for each of its bytes in 32: half a byte, and a scale for each 64.
https://github.com/bitsandbytes-foundation/bitsandbytes/blob/0.48.1/bitsandbytes/functional.py"""


def smaller_weights(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield the model in bfloat16, if the card holds all of it so."""
    model = _moved(trial.case)
    if model is None or _is_half(model) or not _fits(trial.case, model, _whole(model) // 2):
        return
    whole, name = _whole(model), code_name(model)
    yield (
        Finding(
            rule="weights_dtype",
            title=f"Load {name or model['name']} in bfloat16: {format_bytes(whole // 2)} in place "
            f"of {format_bytes(whole)}",
            evidence=f"Its float32 weights were being moved to the card; {_there(model)}.",
            **exact(whole - whole // 2),
            code=f"import torch\n\n{name}.to(torch.bfloat16).cuda()" if name else None,
        ),
        Outcome("on", loads=True),
    )


def too_large_note(case: FailedRequest) -> str | None:
    """Return a note on a model that does not fit even in 16 bits.

    None if it fits, or if no model was being moved.
    """
    model = _moved(case)
    if model is None or (not _is_half(model) and _fits(case, model, _whole(model) // 2)):
        return None
    whole, half = _whole(model), _is_half(model)
    four = _in_four_bits(model, whole * (2 if half else 1))
    fits = _fits(case, model, four)
    holds = "which it holds" if fits else "which is too much as well"
    inner = library_model(model)
    load = (
        " Load it with quantization_config=BitsAndBytesConfig(load_in_4bit=True)."
        if fits and inner is not None and inner["library"] == "transformers"
        else ""
    )
    kind, bfloat16 = "float32", f", in bfloat16 {format_bytes(whole // 2)}"
    if half:
        kind, bfloat16 = "16-bit", ""
    return (
        f"{model['name']} is larger than the card: its {kind} weights take {format_bytes(whole)} "
        f"({_there(model)}){bfloat16}, in 4 bits about {format_bytes(four)}, {holds}.{load} "
        "Accelerate's device_map keeps a part of them on the host."
    )


def _moved(case: FailedRequest) -> dict[str, Any] | None:
    """Return the model of 16 or 32 bits that is partly on the card, or None."""
    modules = case.card_ledger.session.facts.get("modules") or []
    partly = [m for m in modules if m["bytes"] and m.get("host_bytes") and not m.get("called")]
    model = max(partly, key=lambda m: int(m["bytes"]), default=None)
    if model is None or case.caught:
        return None
    allocated = int(case.card_ledger.allocated[case.index])
    if not any(size <= case.size < size + MIN_BLOCK for size in model["host_sizes"]):
        return None  # the request was for none of its weights
    whole_float32 = model["float32_bytes"] == model["bytes"] and model["host_is_float32"]
    plain = whole_float32 or _is_half(model)
    return model if plain and model["bytes"] > DOMINANT * allocated else None


def _in_four_bits(model: dict[str, Any], float32: int) -> int:
    """Return the bytes in 4 bits; tables of a vocabulary stay in 16.

    Args:
        model: The model.
        float32: Its bytes in float32.
    """
    head = model.get("head") or {"words": 0, "width": 0}
    tables = 2 * 4 * int(head["words"]) * int(head["width"])
    return int(max(float32 - tables, 0) * FOUR_BIT) + tables // 2


def _is_half(model: dict[str, Any]) -> bool:
    return not model["float32_bytes"] and bool(model.get("host_is_half"))


def _whole(model: dict[str, Any]) -> int:
    return int(model["bytes"] + model["host_bytes"])


def _there(model: dict[str, Any]) -> str:
    return f"{format_bytes(model['bytes'])} of {format_bytes(_whole(model))} were there"


def _fits(case: FailedRequest, model: dict[str, Any], size: int) -> bool:
    """Return whether the card holds the weights with so many bytes."""
    return case.reserved - int(model["bytes"]) + ROUNDED * size <= case.capacity
