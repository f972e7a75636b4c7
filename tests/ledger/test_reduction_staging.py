"""Staging buffers of reductions in a recording of a real card."""

from dataclasses import replace

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.report.ledger.reduction_staging import NAME, select_staging_buffers
from tests.recorded_runs import load, session_of


def test_the_sums_of_bias_gradients_of_a_transformer():
    card_ledger = CardLedger(session_of(load("timm_vit_small_b64_adamw")))
    rows = [row for row in range(len(card_ledger.category)) if card_ledger.name(row) == NAME]
    assert len(rows) == 3 * (12 * 4 + 1)  # steps; qkv, proj, fc1, fc2 of each block, and the head
    assert {Category(c) for c in card_ledger.category[rows].tolist()} == {Category.TEMPORARIES}
    gradients = card_ledger.category == Category.OUTPUT_GRADIENTS
    allocations, peak = card_ledger.allocations, int(np.argmax(card_ledger.allocated))
    there = (allocations.allocated_at < peak) & (allocations.completed_at >= peak)
    assert int(allocations.block[gradients & there].sum()) == 69_389_824
    assert {Category(c) for c in card_ledger.category[there].tolist()} >= {Category.TEMPORARIES}


def test_what_is_freed_in_another_order_or_has_more_beside_it_is_none():
    card_ledger = CardLedger(session_of(load("timm_vit_small_b64_adamw")))
    allocations, events = card_ledger.allocations, card_ledger.trace.events
    found = np.flatnonzero(select_staging_buffers(allocations, events))
    assert len(found) >= 147
    freed = allocations.freed.copy()
    freed[found], freed[found + 1] = freed[found + 1], freed[found]
    assert not select_staging_buffers(replace(allocations, freed=freed), events)[found].any()
    quiet = events.action.copy()
    quiet[allocations.allocated_at[found + 1]] = Action.OOM  # nothing beside it: a plain temporary
    assert not select_staging_buffers(allocations, replace(events, action=quiet))[found].any()


def test_an_optimizers_list_of_a_weight_and_a_bias_is_none():
    card_ledger = CardLedger(session_of(load("mobilenet_v3_large_b64_rmsprop")))
    sizes = card_ledger.allocations.requested
    of_head = card_ledger.phases.named(card_ledger.born_in, "optimizer") & (sizes == 5_120_000)
    assert of_head.sum() >= 3, "1000 x 1280 floats, then the 1000 of the bias, which goes first"
    assert NAME not in {card_ledger.name(row) for row in np.flatnonzero(of_head).tolist()}
