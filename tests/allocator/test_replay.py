"""Output of `nbmem replay`, as text, as JSON and for unusable files."""

import json
import pickle

import pytest

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.recordings.replay import replay
from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.units import GIB, MIB
from tests.allocator.programs import RECORDINGS


def trace(**changes):
    """Make a small JSON trace: two tensors in one segment."""
    rows = [
        ["segment_alloc", 4096 << 12, 20 * MIB],
        ["alloc", 4096 << 12, 2 * MIB],
        ["alloc", (4096 << 12) + 2 * MIB, 3 * MIB],
        ["free_requested", 4096 << 12, 2 * MIB],
        ["free_completed", 4096 << 12, 2 * MIB],
    ]
    actions = sorted({row[0] for row in rows})
    return {
        "name": "small",
        "torch": "2.13.0",
        "actions": actions,
        "events": [[actions.index(r[0]), r[1], r[2], 0, t, 0] for t, r in enumerate(rows)],
    } | changes


def write_trace(tmp_path, raw):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(raw))
    return path


def test_an_exact_replay(tmp_path):
    result = replay(write_trace(tmp_path, trace()))
    assert result.to_json() == {
        "name": "small",
        "release": "2.13.0",
        "release_known": True,
        "events": 5,
        "exact": True,
        "first_difference": None,
        "peak_allocated": 5 * MIB,
        "peak_reserved": 20 * MIB,
        "recorded_peak_allocated": 5 * MIB,
        "recorded_peak_reserved": 20 * MIB,
        "notes": [],
    }
    assert result.text() == (
        "small: 5 events, rules of torch 2.13.0 (as recorded)\n"
        "exact: every address, segment and counter is the recorded one\n"
        "peak allocated: model 5.0 MiB, recorded 5.0 MiB\n"
        "peak reserved: model 20.0 MiB, recorded 20.0 MiB"
    )


def test_a_recording_that_no_allocator_made(tmp_path):
    raw = trace()
    raw["events"][2][1] += MIB
    result = replay(write_trace(tmp_path, raw))
    assert not result.exact
    assert result.to_json()["first_difference"] == {
        "event": 2,
        "recorded": "put 3145728 bytes at 0x1300000",
        "model": "chose 0x1200000",
    }
    assert "differs first at event 2: the recording put 3145728 bytes" in result.text()


def test_a_segment_of_the_wrong_size(tmp_path):
    raw = trace()
    raw["events"][0][2] = 22 * MIB
    difference = replay(write_trace(tmp_path, raw)).to_json()["first_difference"]
    assert difference["event"] == 1
    assert difference["recorded"].startswith("took a segment of 23068672 bytes")
    assert difference["model"].startswith("took a segment of 20971520 bytes")


def test_a_counter_that_differs(tmp_path):
    bound = {"end_of": "load", "it": 0, "t": 9, "allocated": 3 * MIB, "peak_allocated": 7 * MIB}
    difference = replay(write_trace(tmp_path, trace(bounds=[bound]))).first_difference
    assert difference.recorded == "counted 7340032 bytes peak_allocated at end of load 0"
    assert difference.model == "counts 5242880"


def test_a_snapshot_does_not_name_its_release():
    result = replay(RECORDINGS / "snapshots" / "reserved_unused.pickle.xz")
    assert result.exact
    assert not result.release_known
    assert "the recording does not name its release" in result.text()


def test_the_rules_that_agree_are_chosen_where_the_file_names_no_release():
    """This one depends on the order of equal blocks."""
    result = replay(RECORDINGS / "snapshots" / "gc.pickle.xz")
    assert result.exact
    assert result.release == "2.11.0"
    assert result.notes == ("The memory limit is not recorded; 2.46 GiB explains the events.",)


def test_empty_cache_without_a_stack_is_told_from_a_retry(tmp_path):
    """More was reserved before, so the driver had room: the user gave it back."""
    rows, base = [], 4096 << 12
    rows += [["segment_alloc", base, 40 * MIB], ["alloc", base, 40 * MIB]]
    rows += [["free_requested", base, 40 * MIB], ["free_completed", base, 40 * MIB]]
    rows += [["segment_free", base, 40 * MIB], ["segment_alloc", base, 30 * MIB]]
    rows += [["alloc", base, 30 * MIB]]
    actions = sorted({row[0] for row in rows})
    events = [[actions.index(r[0]), r[1], r[2], 0, t, 0] for t, r in enumerate(rows)]
    assert replay(write_trace(tmp_path, trace(actions=actions, events=events))).exact


def test_files_that_cannot_be_replayed(tmp_path):
    with pytest.raises(UsageError, match="There is no file"):
        replay(tmp_path / "missing.pickle")
    with pytest.raises(FileFormatError, match="JSON, but not a trace"):
        replay(write_trace(tmp_path, {"hello": 1}))
    quiet = tmp_path / "quiet.pickle"
    quiet.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    with pytest.raises(FileFormatError, match="holds no history of events"):
        replay(quiet)
    with pytest.raises(UsageError, match="nothing about card 3"):
        replay(RECORDINGS / "snapshots" / "oom.pickle.xz", device=3)


def test_two_cards_are_told_apart(tmp_path):
    """Of a file with two cards the busier one is replayed, and the other is named."""
    entries = [[], []]

    def allocator(card):
        def note(action, addr, size, stream):
            entries[card].append(
                {"action": action.name.lower(), "addr": addr, "size": size, "stream": stream}
            )

        return CachingAllocator(total_bytes=GIB, on_event=note)

    first, second = allocator(0), allocator(1)
    first.malloc(1000)
    for size in (1000, 2 * MIB, 30 * MIB):
        second.malloc(size)
    segments = [*segments_of(first, 0), *segments_of(second, 1)]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": entries}))
    result = replay(path)
    assert result.exact, result.text()
    assert result.events == 6
    assert result.notes == ("Only card 1 was replayed, not [0].",)
    assert replay(path, device=0).events == 2


def segments_of(allocator, card):
    """Return the allocator's layout as torch's snapshot has it."""
    states = ("inactive", "active_allocated", "active_pending_free")
    layout = allocator.layout()
    found = []
    for row in range(len(layout.segments)):
        start = int(layout.segments.addr[row])
        end = start + int(layout.segments.size[row])
        inside = (layout.blocks.addr >= start) & (layout.blocks.addr < end)
        blocks = layout.blocks[inside]
        found.append(
            {
                "device": card,
                "address": start,
                "total_size": end - start,
                "stream": 0,
                "segment_type": "small" if layout.segments.small[row] else "large",
                "blocks": [
                    {"address": a, "size": n, "requested_size": r, "state": states[s]}
                    for a, n, r, s in zip(
                        blocks.addr.tolist(),
                        blocks.size.tolist(),
                        blocks.requested.tolist(),
                        blocks.state.tolist(),
                        strict=True,
                    )
                ],
            }
        )
    return found
