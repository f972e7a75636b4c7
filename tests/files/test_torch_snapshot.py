"""Reading torch's snapshots: new fields pass, code is never run."""

import gzip
import io
import lzma
import os
import pickle
import subprocess

import pytest

from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.files.snapshot_session import LOST, session_of_snapshot
from nbmem.core.files.torch_snapshot import device_history, load_snapshot, pool_id, pool_number
from nbmem.core.session.events import Action, BlockState, Frame

FRAMES = [{"filename": "train.py", "line": 3, "name": "<module>"}]


def entry(action, addr=4096, size=512, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 7, **more}


def snapshot(*entries, segments=(), **more):
    return {"segments": list(segments), "device_traces": [list(entries)], **more}


def write_snapshot(tmp_path, raw):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(raw if isinstance(raw, bytes) else pickle.dumps(raw))
    return path


def segment(state="active_allocated", **more):
    block = {"address": 4096, "size": 512, "requested_size": 100, "state": state, "frames": FRAMES}
    rest = {"address": 4608, "size": 1536, "requested_size": 0, "state": "inactive", "frames": []}
    return {
        "device": 0,
        "address": 4096,
        "total_size": 2048,
        "stream": 5,
        "segment_type": "small",
        "segment_pool_id": (0, 3),
        "is_expandable": True,
        "blocks": [block, rest],
        **more,
    }


def test_events_keep_their_order_and_share_their_stacks():
    history = device_history(
        snapshot(
            entry("segment_alloc", size=2048, frames=FRAMES),
            entry("alloc", size=100, frames=[dict(FRAMES[0])]),
            entry("free_requested", size=100, frames=[]),
            entry("free_completed", size=100),
            {"action": "oom", "device_free": 99, "size": 1024, "stream": 2},
            entry("snapshot", addr=0, size=0),
        ),
        0,
    )
    assert history.events.action.tolist() == [
        Action.SEGMENT_ALLOC,
        Action.ALLOC,
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
        Action.OOM,
        Action.SNAPSHOT,
    ]
    assert history.events.addr.tolist() == [4096, 4096, 4096, 4096, 99, 0]
    assert history.events.stream.tolist()[4] == 2
    assert history.events.t_ns.tolist()[:5] == [7000, 7000, 7000, 7000, 0]
    assert history.events.stack.tolist() == [0, 0, -1, -1, -1, -1]
    assert history.stacks == ((Frame(file="train.py", line=3, function="<module>"),),)


def test_what_a_newer_torch_adds_is_skipped_and_counted():
    history = device_history(
        snapshot(entry("annotate"), entry("alloc", pool_id=(0, 0), hue="red"), novelty=1), 0
    )
    assert len(history.events) == 1
    assert history.skipped == 1


@pytest.mark.parametrize(("flag", "is_told"), [(True, True), (False, False), ("yes", False)])
def test_a_history_that_was_full_gets_a_note(tmp_path, flag, is_told):
    settings = {"trace_alloc_overflowed": flag, "trace_alloc_max_entries": 2}
    raw = snapshot(
        entry("segment_alloc", size=2048), entry("alloc", size=100), segments=[segment()],
        allocator_settings=settings,
    )  # fmt: skip
    notes = session_of_snapshot(write_snapshot(tmp_path, raw)).notes
    assert (LOST in notes) == is_told


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("active_allocated", BlockState.ALLOCATED),
        ("active_pending_free", BlockState.PENDING),
        ("active_awaiting_free", BlockState.PENDING),
        ("inactive", BlockState.INACTIVE),
    ],
)
def test_the_layout(state, code):
    history = device_history(snapshot(segments=[segment(state), segment(device=1)]), 0)
    segments, blocks = history.layout_at_end.segments, history.layout_at_end.blocks
    columns = {name: column.tolist() for name, column in segments.columns()}
    assert columns == {
        "addr": [4096],
        "size": [2048],
        "stream": [5],
        "small": [1],
        "expandable": [1],
        "pool": [3],
    }
    assert blocks.size.tolist() == [512, 1536]
    assert blocks.requested.tolist() == [100, 0]
    assert blocks.state.tolist() == [code, BlockState.INACTIVE]
    assert blocks.stack.tolist() == [0, -1]


def test_pools_of_captures_and_of_users_are_told_apart():
    pairs = [(0, 0), (0, 4), (4, 0)]
    assert [pool_number(pair) for pair in pairs] == [0, 4, -4]
    assert [pool_id(pool_number(pair)) for pair in pairs] == pairs


def test_a_card_without_events_has_none():
    for device in (0, 1, 7):
        history = device_history({"segments": [], "device_traces": [[]]}, device)
        assert len(history.events) == len(history.layout_at_end.segments) == 0


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_files_may_be_packed(tmp_path, pack):
    raw = snapshot(entry("alloc"), allocator_settings={"max_split_size": -1})
    assert load_snapshot(write_snapshot(tmp_path, pack(pickle.dumps(raw)))) == raw


class Hostile:
    """Leaves a file behind when it is loaded plainly."""

    def __init__(self, path, how):
        self.path, self.how = path, how

    def __reduce__(self):
        return self.how, (f"touch {self.path}",)


@pytest.mark.parametrize("how", [os.system, subprocess.getoutput, eval, exec])
def test_a_hostile_file_runs_nothing(tmp_path, how):
    trap = tmp_path / "sprung"
    raw = snapshot(entry("alloc"), extra=Hostile(trap, how))
    with pytest.raises(FileFormatError, match=f"The pickle wants .*{how.__name__}.*run code"):
        load_snapshot(write_snapshot(tmp_path, raw))
    assert not trap.exists()
    if how is os.system:  # the trap works: loaded plainly it is sprung
        pickle.loads(pickle.dumps(raw))
        assert trap.exists()


def test_references_out_of_the_file_are_refused(tmp_path):
    class Outside(pickle.Pickler):
        def persistent_id(self, obj):
            return "there" if obj == "here" else None

    target = io.BytesIO()
    Outside(target).dump(snapshot(extra="here"))
    with pytest.raises(FileFormatError, match="outside of it"):
        load_snapshot(write_snapshot(tmp_path, target.getvalue()))


def test_every_truncation_is_refused_with_one_sentence(tmp_path):
    whole = pickle.dumps(snapshot(entry("alloc", frames=FRAMES), segments=[segment()]))
    for length in range(0, len(whole), 7):
        with pytest.raises(FileFormatError, match=r"truncated or is not a pickle|not a snapshot"):
            load_snapshot(write_snapshot(tmp_path, whole[:length]))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is truncated or is not a pickle"),
        (b"PK\x03\x04 not a pickle", "is truncated or is not a pickle"),
        (b"{}", "is truncated or is not a pickle"),
        (pickle.dumps([1, 2]), "is a pickle, but not a snapshot"),
        (pickle.dumps({"segments": []}), "is a pickle, but not a snapshot"),
        (lzma.compress(b"x" * 1000)[:-20], "is packed and cannot be unpacked"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-5], "is packed and cannot be unpacked"),
        (b"\x80\x04" + b"]\x94" * 100_000 + b"a" * 99_999 + b".", "not a snapshot"),
    ],
)
def test_foreign_files(tmp_path, data, says):
    with pytest.raises(FileFormatError) as caught:
        load_snapshot(write_snapshot(tmp_path, data))
    assert says in str(caught.value)
    assert "snapshot.pickle" in str(caught.value)


def test_a_missing_file_is_the_users(tmp_path):
    with pytest.raises(UsageError, match="There is no file"):
        load_snapshot(tmp_path / "nothing.pickle")


@pytest.mark.parametrize(
    "raw",
    [
        snapshot({"size": 3}),
        snapshot(entry("alloc", size="many")),
        snapshot(entry("alloc", addr=1 << 70)),
        snapshot(17),
        snapshot(segments=[{"device": 0}]),
        snapshot(segments=[segment(state="melting")]),
        snapshot(entry("alloc", frames=[{"line": 1}])),
    ],
)
def test_parts_of_another_shape_are_refused(raw):
    with pytest.raises(FileFormatError, match="device 0 is not as torch writes it"):
        device_history(raw, 0)
