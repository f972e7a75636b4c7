"""Details of any moment add up to the ledger, to the byte."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.heap import AllocatorOOM
from nbmem.core.session.categories import LIVE, Category
from nbmem.core.session.events import Layout
from nbmem.core.session.session import (
    CardSamples,
    CounterSamples,
    DeviceInfo,
    DeviceTrace,
    Session,
    StorageLabels,
)
from nbmem.core.units import GIB, KIB, MIB
from nbmem.report.analysis import build_report
from nbmem.report.analysis.lifetimes import LIVES
from nbmem.report.analysis.moment_details import moment_details, position_at
from nbmem.report.analysis.pool_history import pool_history
from nbmem.report.exploration import RELEASABLE, STUCK
from nbmem.report.ledger.card_ledger import CardLedger
from tests.allocator.programs import events_of
from tests.recorded_runs import NAMES, load, session_of

RUNS = ("gpt2_b4s512_adamw", "resnet50_b32_sgdm_expandable", "cudagraph_mlp_b512_sgd")


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    session = session_of(load(request.param))
    return CardLedger(session), build_report(session)


def test_lifetimes_and_the_rest_add_up_at_every_moment(run):
    card_ledger, report = run
    found = report.details
    assert len(found.lives) <= LIVES
    born = np.array([life.born for life in found.lives])
    freed = np.array([life.freed for life in found.lives])
    size = np.array([life.requested for life in found.lives])
    category = np.array([life.category for life in found.lives])
    for row, position in enumerate(report.timeline.event.tolist()):
        here = (born < position) & (freed >= position)
        assert found.live[row].sum() == len(card_ledger.live(position))
        for kind in LIVE:
            told = here & (category == kind)
            rest = int(report.timeline.held[row, kind]) - int(size[told].sum())
            others = int(found.live[row, kind]) - int(told.sum())
            assert others >= 0
            assert rest >= 0
            assert others or not rest  # what all are told of has no rest


def test_the_largest_tensors_at_the_peak_and_at_the_end_are_listed(run):
    card_ledger, report = run
    told = {(life.born, life.requested) for life in report.details.lives}
    for position in (report.peak.at.event, card_ledger.events):
        rows = card_ledger.live(position)
        a = card_ledger.allocations
        largest = rows[np.argsort(-a.requested[rows], kind="stable")][:50]
        assert {(int(a.allocated_at[row]), int(a.requested[row])) for row in largest} <= told


def sums(history, row):
    """Return bytes in use, releasable and stuck of the map's pieces."""
    used = releasable = stuck = 0
    for segment, pieces in history.at(row):
        size, kind, _, free = pieces.T
        assert size.min() > 0
        assert size.sum() == segment.size
        used += int((size - free)[kind >= 0].sum())
        releasable += int(size[kind == RELEASABLE].sum())
        stuck += int(size[kind == STUCK].sum() + free[kind >= 0].sum())
    return used, releasable, stuck


def check_pool(card_ledger, history):
    """Compare the map with the ledger at each of its moments."""
    held = card_ledger.held(history.event)
    active = held[:, : Category.PENDING + 1].sum(axis=1)
    for row, event in enumerate(history.event.tolist()):
        used, releasable, stuck = sums(history, row)
        assert used == active[row]
        assert releasable == held[row, Category.CACHED_RELEASABLE]
        assert stuck == held[row, Category.CACHED_STUCK]
        assert used + releasable + stuck == card_ledger.ledger(event).reserved


def test_the_pool_says_what_the_ledger_says_at_every_moment(run):
    card_ledger, report = run
    history = report.details.pool
    assert (history.event == report.timeline.event).all()
    check_pool(card_ledger, history)
    check_pool(card_ledger, pool_history(card_ledger, history.event[::50]))


@pytest.mark.parametrize("name", NAMES)
def test_the_pool_at_the_peak_of_every_recorded_run(name):
    card_ledger = CardLedger(session_of(load(name)))
    peak = card_ledger.peak(0, card_ledger.events)
    check_pool(card_ledger, pool_history(card_ledger, np.array([peak, card_ledger.events])))


SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(MIB, 30 * MIB), st.just(20 * MIB))
STEPS = st.one_of(
    st.tuples(st.just("take"), SIZES, st.sampled_from([0, 7])),
    st.tuples(st.just("free"), st.integers(0, 99), st.booleans()),
    st.sampled_from([("wait", 0, 0), ("empty", 0, 0)]),
)


def record_steps(steps, conf):
    """Make a session of an allocator on a small card."""
    rows, held = [], []
    allocator = CachingAllocator(
        total_bytes=200 * MIB, settings=conf, on_event=lambda *event: rows.append(event)
    )
    for what, size, stream in steps:
        if what == "take":
            with contextlib.suppress(AllocatorOOM):
                held.append(allocator.malloc(size, stream))
        elif what == "free" and held:
            addr = held.pop(size % len(held))
            if stream:
                allocator.record_stream(addr, 9)
            allocator.free(addr)
        elif what == "wait":
            allocator.complete_streams()
        else:
            allocator.empty_cache()
    trace = DeviceTrace(
        info=DeviceInfo(index=0, name="card", total_bytes=GIB, virtual=True, torch="2.13.0"),
        release="2.13.0",
        settings={"PYTORCH_CUDA_ALLOC_CONF": conf},
        start=Layout.empty(),
        events=events_of(rows),
        end=allocator.layout(),
        dropped=0,
        counter_samples=_none(CounterSamples),
        samples=_none(CardSamples),
        storage_labels=_none(StorageLabels),
    )
    return Session(name="steps", created_ns=0, devices=(trace,), spans=())


def _none(columns):
    """No rows."""
    names = columns.__dataclass_fields__
    return columns(
        **{name: np.zeros(0, np.uint8 if name == "category" else np.int64) for name in names}
    )


@settings(max_examples=60)
@given(
    steps=st.lists(STEPS, max_size=40),
    conf=st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20"]),
    data=st.data(),
)
def test_the_pool_at_any_moments_of_any_program(steps, conf, data):
    card_ledger = CardLedger(record_steps(steps, conf))
    some = data.draw(st.sets(st.integers(0, card_ledger.events), min_size=1, max_size=12))
    exact = pool_history(card_ledger, np.array(sorted(some), np.int64))
    check_pool(card_ledger, exact)
    check_pool(card_ledger, pool_history(card_ledger, exact.event, most=1))
    a = card_ledger.allocations
    for row, event in enumerate(exact.event.tolist()):
        blocks = sum(int(pieces[:, 2].sum()) for _, pieces in exact.at(row))
        assert blocks == ((a.allocated_at < event) & (a.completed_at >= event)).sum()


def test_the_details_of_any_event_equal_the_ledger(run):
    card_ledger, report = run
    event = int(report.timeline.event[5]) + 1
    found = moment_details(card_ledger, event, 0, tensors=[0])
    assert found.event.tolist() == [0, event]
    assert (found.held == card_ledger.held(found.event)).all()
    assert found.live[1].sum() == len(card_ledger.live(event))
    lives = {life.number for life in found.lives}
    assert lives <= {0, *card_ledger.live(event).tolist()}
    assert 0 in lives
    check_pool(card_ledger, found.pool)
    start = card_ledger.session.spans[0].t0_ns
    for position in (0, event, card_ledger.events):
        t_ns = int(card_ledger.times(np.array([position]))[0]) - start
        assert card_ledger.times(np.array([position_at(card_ledger, t_ns)])) == t_ns + start
