"""Try a language model's call without its KV cache on the card.

A model of transformers keeps the keys and values of each layer for further tokens, unless it is
told otherwise. Whoever reads scores, losses or hidden states needs none. Where the tokens come,
transformers can keep all layers but those that run on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.core.units import format_bytes
from nbmem.report.analysis.library_calls import library_model, name_of_library_model
from nbmem.report.analysis.oom.continuations.continuation import NEVER, FutureBlock, cached_rows
from nbmem.report.analysis.oom.trial import kept_elsewhere
from nbmem.report.analysis.program_names import largest_model
from nbmem.report.model import Finding
from nbmem.report.savings import estimated, simulated

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.trial import Outcome, Trial


_LAYERS = 3
"""Layers that an offloaded cache has on the card: the running one, the next, and the one before,
which is on its way. https://github.com/huggingface/transformers/blob/v5.17.0/src/transformers/
cache_utils.py"""


def unread_cache(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield `use_cache=False`, where nothing reads the cache."""
    case = trial.case
    call = None if case.refusal is None else case.refusal.call
    rows = cached_rows(case.card_ledger, case.index)
    model = largest_model(case.card_ledger.session)
    inner = library_model(model)
    if call is None or not call.unread or not len(rows) or trial.phase != "inference":
        return
    if model is None or inner is None or inner["library"] != "transformers":
        return
    name, size = name_of_library_model(model, inner), trial.bytes_of(rows)
    then = replace(trial.then, grown=tuple(rows.tolist()))
    yield (
        Finding(
            rule="unread_cache",
            title=f"Call the model with `use_cache=False`: {format_bytes(size)} less, the keys and "
            f"values of {call.block or 'its'} layers for tokens that do not come",
            evidence="The call was given no `past_key_values`, and the code around it reads none.",
            **simulated(size),
            code=f"{name}.config.use_cache = False   # generate() has its own setting"
            if name
            else None,
        ),
        trial.now(
            freed=rows.tolist(), then=kept_elsewhere(then, case.card_ledger.allocations.requested)
        ),
    )


def offloaded_cache(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield a cache on the host, where further tokens need it."""
    case = trial.case
    call = None if case.refusal is None else case.refusal.call
    rows = cached_rows(case.card_ledger, case.index)
    if call is None or not call.offloads or call.unread or not call.cached or not len(rows):
        return
    most = int(case.card_ledger.allocations.requested[rows].max())
    most = most * (call.cached + (call.tokens_left or 0)) // call.cached
    cached, size = {*rows.tolist()}, trial.bytes_of(rows)
    kept = [
        FutureBlock(-0.5, NEVER, most, case.stream, -1, of_batch=True) for _ in range(2 * _LAYERS)
    ]
    then = replace(trial.then, slope=0).changed(lambda b: None if b.row in cached else b)
    yield (
        Finding(
            rule="offloaded_cache",
            title=f"Keep the KV cache on the host: {format_bytes(size)} of it are on the card, of "
            f"{call.cached:,} tokens",
            evidence=f"Then {_LAYERS} layers' keys and values are on the card at a time; those of "
            "all travel over the bus for each token, so it is slower.",
            **estimated(max(0, size - 2 * _LAYERS * most), size),
            code=_IN_GENERATE if call.tokens_left is not None else _in_a_loop(case),
        ),
        trial.now(freed=cached, then=then.changed_to((*then.blocks, *kept))),
    )


def _in_a_loop(case: FailedRequest) -> str | None:
    """Return the code of a cache for a loop of the program's own, or None."""
    model = largest_model(case.card_ledger.session)
    inner = library_model(model)
    name = None if model is None or inner is None else name_of_library_model(model, inner)
    return None if name is None else _IN_A_LOOP.format(name=name)


_IN_GENERATE = 'cache_implementation="offloaded"   # as an argument of generate()'
_IN_A_LOOP = """from transformers import DynamicCache

# as an argument of the first call:
past_key_values = DynamicCache(config={name}.config, offloading=True)"""
