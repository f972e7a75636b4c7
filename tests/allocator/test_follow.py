"""Following recorded events, also in histories with contradictions."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings.follow import reconstruct
from nbmem.allocator.recordings.undo_events import undo_with_notes
from nbmem.allocator.settings import AllocatorSettings
from nbmem.core.session.events import Action, BlockState, Layout
from nbmem.core.units import GIB, MIB
from tests.allocator.programs import events_of

PLAIN = AllocatorSettings()
BASE = 1 << 40
A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SEG, BACK = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE
CURVES = ("allocated", "active", "requested", "reserved", "releasable", "inactive_split")


def follow_rows(rows, start=None, conf=PLAIN):
    return reconstruct(start or Layout.empty(), events_of(rows), conf)


def test_a_value_is_the_one_before_its_event():
    found = follow_rows(
        [(SEG, BASE, 2 * MIB, 0), (A, BASE, 1000, 0), (R, BASE, 1000, 0), (C, BASE, 1000, 0)]
    )
    assert found.reserved.tolist() == [0, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB]
    assert found.allocated.tolist() == [0, 0, 1024, 0, 0]
    assert found.active.tolist() == [0, 0, 1024, 1024, 0]
    assert found.requested.tolist() == [0, 0, 1000, 1000, 0]
    assert found.releasable.tolist() == [0, 2 * MIB, 0, 0, 2 * MIB]
    assert found.inactive_split.tolist() == [0, 0, 2 * MIB - 1024, 2 * MIB - 1024, 0]
    rows = {name: column.tolist() for name, column in found.allocations.columns()}
    assert rows == {
        "allocated_at": [1],
        "freed": [2],
        "completed_at": [3],
        "addr": [BASE],
        "requested": [1000],
        "block": [1024],
        "stream": [0],
        "stack": [-1],
    }


def test_allocations_from_before_and_never_freed():
    allocator = CachingAllocator(total_bytes=GIB)
    old, pending = allocator.malloc(3 * MIB, 5), allocator.malloc(4 * MIB, 5)
    allocator.record_stream(pending, 9)
    allocator.free(pending)
    start = allocator.layout()
    found = follow_rows([(C, pending, 4 * MIB, 5)], start)
    assert found.allocations.allocated_at.tolist() == [-1, -1]
    assert found.allocations.freed.tolist() == [1, -1]
    assert found.allocations.completed_at.tolist() == [1, 0]
    assert found.allocations.stream.tolist() == [5, 5]
    assert found.allocations.addr.tolist() == [old, pending]
    assert found.allocated.tolist() == [3 * MIB, 3 * MIB]
    assert found.active.tolist() == [7 * MIB, 3 * MIB]


def test_frees_with_one_entry_only():
    found = follow_rows([(SEG, BASE, 2 * MIB, 0), (A, BASE, 512, 0), (C, BASE, 512, 0)])
    assert found.allocations.freed.tolist() == found.allocations.completed_at.tolist() == [2]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([(R, BASE, 512, 0), (C, BASE, 512, 0)], "2 frees had no allocation."),
        ([(A, BASE, 512, 0)], "1 allocations lie in no known segment; their segment is not"),
        (
            [(SEG, BASE, 2 * MIB, 0), (A, BASE, 512, 0), (A, BASE, 1024, 0)],
            "1 allocations were made where another one still lived.",
        ),
        (
            [(SEG, BASE, 2 * MIB, 0), (A, BASE + MIB, 512, 0)],
            "1 blocks had another size than the settings give: were they changed?",
        ),
        ([(BACK, BASE, 2 * MIB, 0)], "1 segments were given back or taken that were not"),
        (
            [(SEG, BASE, 20 * MIB, 0), (A, BASE, 3 * MIB, 0), (SEG, BASE, 20 * MIB, 0)],
            "1 segments were given back or taken that were not",
        ),
    ],
)
def test_contradictions_become_notes(rows, note):
    found = follow_rows(rows)
    assert len(found.notes) == 1
    assert found.notes[0].startswith(note)


def test_unrecorded_changes_of_settings_are_corrected():
    """Recorded with expandable segments, replayed without: more blocks were split."""
    rows = []
    allocator = CachingAllocator(
        total_bytes=GIB,
        settings="expandable_segments:True",
        on_event=lambda action, *rest: rows.append((int(action), *rest)),
    )
    for _ in range(2):
        for addr in [allocator.malloc(size) for size in (19 * MIB + 5, 700_000, 5 * MIB)]:
            allocator.free(addr)
        kept = allocator.malloc(3 * MIB)
    found = follow_rows(rows)
    assert found.allocated[-1] == allocator.allocated
    assert found.reserved[-1] == allocator.reserved
    assert kept in found.allocations.addr.tolist()


EVENTS = st.tuples(
    st.sampled_from([int(a) for a in Action]),
    st.integers(0, 12).map(lambda step: BASE + step * MIB),
    st.sampled_from([1, 512, MIB, 2 * MIB, 3 * MIB, 20 * MIB]),
    st.sampled_from([0, 7]),
)


@settings(max_examples=400)
@example(  # an allocation where two segments overlap
    rows=[
        (3, BASE, 1, 0), (4, BASE, 3 * MIB, 0), (4, BASE + MIB, 2 * MIB, 0), (0, BASE + MIB, 1, 0),
    ],
    conf="",
)  # fmt: skip
@given(
    rows=st.lists(EVENTS, max_size=40),
    conf=st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20"]),
)
def test_nonsense_is_followed_without_an_exception(rows, conf):
    conf = AllocatorSettings.parse(conf)
    events = events_of(rows)
    found = reconstruct(Layout.empty(), events, conf)
    for name in CURVES:
        assert len(getattr(found, name)) == len(rows) + 1
    assert (found.active >= found.allocated).all()
    assert len(found.allocations) == sum(row[0] == A for row in rows)
    allocator = CachingAllocator(total_bytes=GIB)
    allocator.malloc(3 * MIB)
    for final in (Layout.empty(), allocator.layout()):
        start, _ = undo_with_notes(final, events, conf)
        reconstruct(start, events, conf)


def test_undo_leaves_what_had_no_events():
    allocator = CachingAllocator(total_bytes=GIB)
    allocator.malloc(1000)
    allocator.malloc(3 * MIB)
    layout = allocator.layout()
    again, _ = undo_with_notes(layout, events_of([]), PLAIN)
    for part in ("segments", "blocks"):
        for name, column in getattr(layout, part).columns():
            if name != "requested":
                assert np.array_equal(column, getattr(getattr(again, part), name)), name


def test_undo_shows_where_a_block_ended_by_what_lay_behind_it():
    """The first block kept 300 KiB more than it asked for: its neighbour begins behind them."""
    rows = []
    allocator = CachingAllocator(total_bytes=GIB)
    first, second = allocator.malloc(2 * MIB), allocator.malloc(3 * MIB)
    allocator.free(first)
    first = allocator.malloc(2 * MIB - 300 * 1024)
    third = allocator.malloc(4 * MIB)
    before = allocator.layout()
    allocator.emit = lambda action, *rest: rows.append((int(action), *rest))
    for addr in (second, third, first):
        allocator.free(addr)
    start, notes = undo_with_notes(allocator.layout(), events_of(rows), PLAIN)
    assert notes == (
        "1 blocks from before the recording may each be up to 1 MiB larger than shown.",
    )
    assert start.blocks.addr.tolist() == before.blocks.addr.tolist()
    assert start.blocks.size.tolist() == before.blocks.size.tolist()
    assert (start.blocks.state == BlockState.ALLOCATED).sum() == 3
