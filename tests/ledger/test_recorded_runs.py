"""Ledgers of recorded H100 runs equal the card's counters."""

import dataclasses

import numpy as np
import pytest

from nbmem.core.session.categories import Category
from nbmem.report.analysis import build_report
from nbmem.report.ledger.card_ledger import CardLedger
from tests.recorded_runs import CATEGORIES, NAMES, load, session_of

COUNTERS = ("allocated", "active", "requested", "reserved", "inactive_split")


@pytest.fixture(scope="module", params=NAMES)
def run(request):
    raw = load(request.param)
    session = session_of(raw)
    return raw, session, CardLedger(session)


def test_there_are_36_runs():
    assert len(NAMES) == 36


def test_the_followed_events_say_what_the_counters_said(run):
    raw, _, card_ledger = run
    positions = card_ledger.trace.counter_samples.position
    for counter in COUNTERS:
        followed = getattr(card_ledger._followed, counter)[positions].tolist()
        assert followed == [bound[counter] for bound in raw["bounds"]], counter
    assert not card_ledger.notes


def test_peaks_between_bounds_are_the_counters_peaks(run):
    raw, _, card_ledger = run
    begin = 0
    for bound, end in zip(
        raw["bounds"], card_ledger.trace.counter_samples.position.tolist(), strict=True
    ):
        top = card_ledger.allocated[begin : end + 1].max()
        assert top == bound["peak_allocated"], bound["end_of"]
        begin = end


def test_the_peak_of_the_process_is_never_below_what_was_read(run):
    raw, _, card_ledger = run
    readings = [bound["process"] for bound in raw["bounds"]]
    reserved = card_ledger.reserved.max() - raw["bounds"][-1]["reserved"]
    assert max(readings) <= card_ledger.peak_process() <= max(readings) + reserved


def test_the_end_is_what_was_read_last(run):
    raw, session, _ = run
    trace = session.devices[0]
    last = raw["bounds"][-1]
    more = last["process"] + (96 << 20)  # a library made a handle after the last allocation
    late = dataclasses.replace(
        trace.samples,
        t_ns=np.append(trace.samples.t_ns[:-1], trace.events.t_ns[-1] + 1),
        process=np.append(trace.samples.process[:-1], more),
        used=np.append(trace.samples.used[:-1], more),
    )
    trace = dataclasses.replace(trace, samples=late)
    card_ledger = CardLedger(dataclasses.replace(session, devices=(trace,)))
    assert card_ledger.ledger(card_ledger.events).process == more


def test_identified_categories_are_the_recorded_ones(run):
    raw, _, card_ledger = run
    at = {
        (b["end_of"], b["it"]): int(p)
        for b, p in zip(raw["bounds"], card_ledger.trace.counter_samples.position, strict=True)
    }
    for seen in raw["categories"]:
        ledger = card_ledger.ledger(at[seen["at"], seen["it"]])
        for key, category in CATEGORIES.items():
            assert ledger[category] == sum(dict(map(tuple, seen[key])).values()), (seen["at"], key)


def test_every_moment_balances(run):
    _, session, card_ledger = run
    positions = np.arange(card_ledger.events + 1)
    held = card_ledger.held(positions)
    assert (held.sum(axis=1) == card_ledger.trace.info.total_bytes).all()
    assert (held >= 0).all()
    live = held[:, : Category.PENDING].sum(axis=1)
    assert (live == card_ledger.allocated).all()
    assert (held[:, : Category.CONTEXT].sum(axis=1) == card_ledger.reserved).all()
    assert session.devices[0] is card_ledger.trace


def test_process_is_what_nvml_said_at_the_bounds(run):
    raw, _, card_ledger = run
    for bound, position in zip(
        raw["bounds"][1:], card_ledger.trace.counter_samples.position[1:], strict=True
    ):
        process = card_ledger.ledger(int(position)).process
        # The reading belongs to the bound itself; the last event before it may be an earlier one's.
        assert abs(process - bound["process"]) <= 160 << 20


def test_hardly_anything_is_unknown_at_the_peak(run):
    _, session, _ = run
    report = build_report(session)
    at_peak = report.ledger_at_peak
    assert at_peak[Category.UNKNOWN] <= 0.01 * at_peak.active


def test_without_observations_no_category_is_invented(run):
    """The categories come from what was seen, not from names, sizes or the phase of birth."""
    raw, _, _ = run
    blind = CardLedger(session_of({**raw, "categories": []}))
    ledger = blind.ledger(blind.events)
    for category in (Category.WEIGHTS, Category.INPUTS, Category.OPTIMIZER_STATE):
        assert ledger[category] == 0
    assert ledger[Category.UNKNOWN] > 0
