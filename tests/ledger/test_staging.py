"""Staging buffers of reductions in a recording of a real card: temporaries, and no gradients."""

from dataclasses import replace

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import Action
from nbmem.report.ledger.card_ledger import Books
from nbmem.report.ledger.reduction_staging import NAME, staging
from tests.recorded import load, session_of


def test_the_sums_of_bias_gradients_of_a_transformer():
    books = Books(session_of(load("timm_vit_small_b64_adamw")))
    rows = [row for row in range(len(books.category)) if books.name(row) == NAME]
    assert len(rows) == 3 * (12 * 4 + 1)  # steps; qkv, proj, fc1, fc2 of each block, and the head
    assert {Category(c) for c in books.category[rows].tolist()} == {Category.TEMPORARIES}
    gradients = books.category == Category.OUTPUT_GRADIENTS
    allocations, peak = books.allocations, int(np.argmax(books.allocated))
    there = (allocations.born < peak) & (allocations.died >= peak)
    assert int(allocations.block[gradients & there].sum()) == 69_389_824
    assert {Category(c) for c in books.category[there].tolist()} >= {Category.TEMPORARIES}


def test_what_is_freed_in_another_order_or_has_more_beside_it_is_none():
    books = Books(session_of(load("timm_vit_small_b64_adamw")))
    allocations, events = books.allocations, books.trace.events
    found = np.flatnonzero(staging(allocations, events))
    assert len(found) >= 147
    freed = allocations.freed.copy()
    freed[found], freed[found + 1] = freed[found + 1], freed[found]
    assert not staging(replace(allocations, freed=freed), events)[found].any()
    quiet = events.action.copy()
    quiet[allocations.born[found + 1]] = Action.OOM  # nothing beside it: a plain temporary
    assert not staging(allocations, replace(events, action=quiet))[found].any()


def test_an_optimizers_list_of_a_weight_and_a_bias_is_none():
    books = Books(session_of(load("mobilenet_v3_large_b64_rmsprop")))
    sizes = books.allocations.requested
    of_head = books.phases.named(books.born_in, "optimizer") & (sizes == 5_120_000)
    assert of_head.sum() >= 3, "1000 x 1280 floats, then the 1000 of the bias, which goes first"
    assert NAME not in {books.name(row) for row in np.flatnonzero(of_head).tolist()}
