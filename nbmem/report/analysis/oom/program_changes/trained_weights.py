"""Try a fused step, an 8-bit optimizer, or adapters, on a failed step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.library_calls import (
    is_in_trainer,
    library_model,
    name_of_library_model,
)
from nbmem.report.analysis.oom.continuations.continuation import LIVE, NEVER, FutureBlock
from nbmem.report.analysis.optimizer_state import COPIES, can_be_fused, fused_code
from nbmem.report.analysis.program_names import code_name, largest_model, largest_optimizer
from nbmem.report.model import Finding
from nbmem.report.savings import estimated, simulated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.trial import Outcome, Trial

_TWO_COPIES = tuple(name for name, count in COPIES.items() if count == 2 and "delta" not in name)
_BLOCK = 256
"""Values of bitsandbytes' 8-bit state that share one scale of 4 bytes."""
_HALF = 2
"""Bytes of a number in 16 bits."""
_MIN_EIGHT_BIT = 4096
"""Elements of a weight below which bitsandbytes keeps 32 bits."""
_ADAPTERS = 0.02
"""Part of the weights that adapters have at most, at the usual ranks."""
_OF_TRAINED = (Category.GRADIENTS, Category.OPTIMIZER_STATE)
_STEPS = ("forward", "backward", "optimizer")


def fused_step(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield the fused implementation where another one's step failed."""
    optimizer = largest_optimizer(trial.case.card_ledger.session)
    if trial.phase != "optimizer" or optimizer is None or not can_be_fused(optimizer):
        return
    live = trial.rows(Category.TEMPORARIES)
    then = trial.then.changed(lambda block: block._replace(size=1) if _is_of_step(block) else block)
    name, size = code_name(optimizer), trial.bytes_of(live)
    yield (
        Finding(
            rule="optimizer_state",
            title=f"`fused=True` in {optimizer['class']}: its step has no temporaries",
            evidence=f"They held {format_bytes(size)} when memory ran out.",
            **simulated(size),
            code=None if name is None else fused_code(name, optimizer),
        ),
        trial.now(freed=live.tolist(), then=then),
    )


def eight_bit_state(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield an 8-bit optimizer in place of an Adam of torch."""
    optimizer = _adam(trial)
    if optimizer is None:
        return
    live = trial.rows(Category.OPTIMIZER_STATE)
    requested = trial.case.card_ledger.allocations.requested
    width = _width(optimizer)
    kept = sum(_in_eight_bits(int(requested[row]), width) for row in live.tolist())

    def change(block: FutureBlock) -> FutureBlock | None:
        if block.requested_at == LIVE:
            return None if block.kind is Category.OPTIMIZER_STATE else block
        if block.kind is Category.OPTIMIZER_STATE:
            return block._replace(size=_in_eight_bits(block.size, width))
        # Its kernel writes no copy of the weights, as those of torch's foreach step.
        return block._replace(size=1) if _is_of_step(block) else block

    then = trial.then.changed(change)
    extra = FutureBlock(-0.5, NEVER, max(kept, 1), trial.case.stream, -1)
    whole = 2 * sum(optimizer["parameters"])
    saved = whole - sum(2 * _in_eight_bits(size, width) for size in optimizer["parameters"])
    yield (
        Finding(
            rule="optimizer_state",
            title=f"Keep {optimizer['class']}'s state in 8 bits: about {format_bytes(saved)} less",
            evidence=f"It keeps two numbers for each weight: {format_bytes(whole)}. They are "
            "rounded in blocks of 256, so try it on a short run first.",
            **estimated(saved),
            code=_eight_bit_code(trial, optimizer),
        ),
        trial.now(freed=live.tolist(), then=then.changed_to((*then.blocks, extra))),
    )


def adapters(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield LoRA, where all weights of a transformers model are trained."""
    optimizer = _adam(trial)
    model = largest_model(trial.case.card_ledger.session)
    inner = library_model(model)
    if optimizer is None or model is None or inner is None or model.get("peft"):
        return
    weights = sum(optimizer["parameters"])
    if inner["library"] != "transformers" or 2 * weights < int(model["bytes"]):
        return
    live = trial.rows(*_OF_TRAINED)

    def change(block: FutureBlock) -> FutureBlock | None:
        if block.requested_at == LIVE:
            return None if block.kind in _OF_TRAINED else block
        if block.kind in _OF_TRAINED or _is_of_step(block):
            return block._replace(size=max(1, int(block.size * _ADAPTERS)))
        return block

    then = trial.then.changed(change)
    size = max(int(4 * weights * _ADAPTERS), 1)
    saved = 3 * weights - size
    extra = FutureBlock(-0.5, NEVER, size, trial.case.stream, -1)
    name = name_of_library_model(model, inner)
    yield (
        Finding(
            rule="adapters",
            title="Train adapters (LoRA) in place of all weights: about "
            f"{format_bytes(saved)} less",
            evidence=f"Gradients and {optimizer['class']}'s state are {format_bytes(3 * weights)} "
            "for all weights; adapters are at most 2% of these. It trains fewer weights, so "
            "compare it on a short run.",
            **estimated(saved),
            code=None
            if name is None
            else "from peft import LoraConfig, get_peft_model\n\n"
            f'{name} = get_peft_model({name}, LoraConfig(r=16, target_modules="all-linear"))'
            "   # before its optimizer or Trainer is made",
        ),
        trial.now(freed=live.tolist(), then=then.changed_to((*then.blocks, extra))),
    )


def too_much_trained_note(case: FailedRequest) -> str | None:
    """Return a note on a training that fits with no batch, or None.

    Weights, their gradients and an Adam's state alone are more than the card has.
    """
    optimizer = largest_optimizer(case.card_ledger.session)
    if optimizer is None or not optimizer["torch"] or optimizer["class"] not in _TWO_COPIES:
        return None
    weights = sum(optimizer["parameters"])
    if case.caught or 4 * weights <= case.capacity:
        return None
    size, kind, width = format_bytes(weights), optimizer["class"], _width(optimizer)
    ways = ["train fewer weights, such as adapters (LoRA)"]
    if width > _HALF and 4 * weights * _HALF <= case.capacity * width:
        ways.append("load them in 16 bits")
    if 2 * weights + 2 * weights // width <= case.capacity:
        ways.append(f"keep {kind}'s state in 8 bits")
    return (
        f"No batch is small enough: weights of {size}, as much of gradients and twice as much of "
        f"{kind}'s state are {format_bytes(4 * weights)}, and the card gives "
        f"{format_bytes(case.capacity)}. What may help: {', or '.join(ways)}."
    )


def _adam(trial: Trial) -> dict[str, Any] | None:
    """Return the largest optimizer if an Adam of torch trains, or None."""
    seen = trial.case.refusal
    if trial.phase not in _STEPS or (seen is not None and seen.evaluating):
        return None
    found = largest_optimizer(trial.case.card_ledger.session)
    if found is None or not found["torch"] or found["class"] not in _TWO_COPIES:
        return None
    return found if found["parameters"] else None


def _width(optimizer: dict[str, Any]) -> int:
    """Return the bytes of one number of the optimizer's weights."""
    elements: int = sum(math.prod(shape) for shape in optimizer["shapes"])
    whole: int = sum(optimizer["parameters"])
    return max(1, whole // max(elements, 1))


def _in_eight_bits(size: int, width: int) -> int:
    """Return the bytes of one state tensor in 8 bits, with its scales."""
    elements = size // width
    if elements < _MIN_EIGHT_BIT:
        return max(size, 1)
    return elements + 4 * math.ceil(elements / _BLOCK)


def _is_of_step(block: FutureBlock) -> bool:
    """Return whether a block is expected of an optimizer's step alone."""
    return block.row < 0 and block.kind is Category.WORKSPACE


def _eight_bit_code(trial: Trial, optimizer: dict[str, Any]) -> str | None:
    if is_in_trainer(trial.case):
        return 'optim = "adamw_8bit"   # in TrainingArguments; pip install bitsandbytes'
    name = code_name(optimizer)
    if name is None:
        return None
    return (
        "import bitsandbytes as bnb   # pip install bitsandbytes\n\n"
        f'groups = [{{"params": g["params"], "lr": g["lr"]}} for g in {name}.param_groups]\n'
        f"{name} = bnb.optim.AdamW8bit(groups)   # before the first step: its state begins anew"
    )
