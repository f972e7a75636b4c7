"""Thinned timelines keep every peak."""

from itertools import pairwise

import numpy as np
import pytest

from nbmem.core.session.categories import Category
from nbmem.report.analysis.timeline import chosen_positions, timeline
from nbmem.report.ledger.card_ledger import CardLedger
from tests.recorded_runs import load, session_of


@pytest.fixture(scope="module", params=["gpt2_b4s512_adamw", "lstm_lm_b32s128_sgd"])
def card_ledger(request):
    return CardLedger(session_of(load(request.param)))


@pytest.mark.parametrize("bins", [1, 7, 50, 400])
def test_no_stretch_loses_its_peak(card_ledger, bins):
    positions = chosen_positions(card_ledger, bins)
    edges = np.linspace(0, card_ledger.events + 1, bins + 1).astype(int)
    for curve in (card_ledger.allocated, card_ledger.reserved):
        for low, high in pairwise(edges):
            shown = positions[(positions >= low) & (positions <= high)]
            assert curve[shown].max() >= curve[low:high].max()


def test_both_ends_are_shown(card_ledger):
    positions = chosen_positions(card_ledger, 7)
    assert positions[0] == 0
    assert positions[-1] == card_ledger.events
    assert (np.diff(positions) > 0).all()


def test_a_free_is_not_shown_half_done(card_ledger):
    curves = timeline(card_ledger, int(card_ledger.trace.events.t_ns[0]))
    assert curves.held[:, Category.PENDING].max() == 0
    assert (np.diff(curves.t_ns) >= 0).all()
    assert (curves.held.sum(axis=1) == card_ledger.trace.info.total_bytes).all()
