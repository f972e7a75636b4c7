"""Ends of steps in any numbering, and the comparison of steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np

import nbmem
from nbmem.report.analysis.growth import step_ends, steps_are_equal
from nbmem.report.ledger.card_ledger import CardLedger
from tests.recorded_runs import load, session_of

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"


def test_steps_that_a_file_numbers_backwards_end_in_order():
    session = session_of(load("lstm_lm_b32s128_sgd"))
    ends = step_ends(CardLedger(session))
    assert len(ends) == 3
    assert (np.diff(ends) > 0).all()
    spans = tuple(s if s.step is None else replace(s, step=2 - s.step) for s in session.spans)
    assert step_ends(CardLedger(replace(session, spans=spans))).tolist() == [ends[-1]] * 3


def test_steps_are_alike_unless_their_batches_differ():
    assert steps_are_equal(CardLedger(session_of(load("lstm_lm_b32s128_sgd"))))
    assert not steps_are_equal(
        CardLedger(nbmem.open(SNAPSHOTS / "variable_lengths.pickle.xz").session)
    )
