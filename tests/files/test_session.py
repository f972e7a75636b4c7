"""Sessions survive saving; anything else is refused with a sentence."""

import dataclasses
import json
import zipfile

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.categories import Category
from nbmem.core.session.events import (
    Action,
    Blocks,
    BlockState,
    Columns,
    Events,
    Frame,
    Layout,
    Segments,
)
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.oom import Refusal, RunningCall
from nbmem.core.session.ranks import Coordinate, Rank
from nbmem.core.session.session import (
    BlockUses,
    Calls,
    CardSamples,
    CollectedFrees,
    CounterSamples,
    DeviceInfo,
    DeviceTrace,
    Holders,
    Session,
    StorageLabels,
)
from nbmem.core.session.spans import Span
from tests.fuzz.bases import session as fuzzed
from tests.recorded_runs import load, session_of

CODES = {"action", "category", "expandable", "kind", "small", "state"}


EVENTS, STACKS, NAMES = 4, 2, 3
"""Rows that others refer to."""
big = st.integers(0, 1 << 50)
BOUNDS = {
    "position": st.integers(0, EVENTS),
    "first": st.integers(-1, EVENTS),
    "last": st.integers(0, EVENTS),
    "made": st.integers(0, EVENTS),
    "in_backward": st.integers(0, 1),
    "event": st.integers(0, EVENTS - 1),
    "collection": st.integers(0, EVENTS),
    "stack": st.integers(-1, STACKS - 1),
    "action": st.sampled_from(Action),
    "state": st.sampled_from(BlockState),
    "category": st.sampled_from(Category),
    "kind": st.sampled_from(HolderKind),
    **dict.fromkeys(("name", "form", "root", "path"), st.integers(0, NAMES - 1)),
    **dict.fromkeys(("stream", "pool"), st.integers(-(1 << 62), 1 << 62)),
}


@st.composite
def tables(draw, kind, least=0, most=5):
    n = draw(st.integers(least, most))
    return kind(
        **{
            field.name: np.array(
                draw(st.lists(BOUNDS.get(field.name, big), min_size=n, max_size=n)),
                np.uint8 if field.name in CODES else np.int64,
            )
            for field in dataclasses.fields(kind)
        }
    )


@st.composite
def layouts(draw):
    """Segments one behind the other, each tiled by its blocks."""
    at, segments, blocks = 1 << 40, [], []
    for sizes in draw(st.lists(st.lists(st.integers(1, 1 << 30), min_size=1, max_size=3))):
        at += draw(st.integers(0, 1 << 20))
        flags = draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
        segments.append((at, sum(sizes), draw(BOUNDS["stream"]), *flags, draw(BOUNDS["pool"])))
        for size in sizes:
            state = draw(BOUNDS["state"])
            blocks.append((at, size, draw(st.integers(0, size)), state, draw(BOUNDS["stack"])))
            at += size
    return Layout(segments=columns(Segments, segments), blocks=columns(Blocks, blocks))


def columns(kind, rows):
    names = [field.name for field in dataclasses.fields(kind)]
    table = np.array(rows, np.int64).reshape(-1, len(names)).T
    return kind(
        **{
            name: column.astype(np.uint8 if name in CODES else np.int64)
            for name, column in zip(names, table, strict=True)
        }
    )


text = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
devices = st.builds(
    DeviceTrace,
    info=st.builds(
        DeviceInfo,
        index=st.integers(0, 7),
        name=text,
        total_bytes=big,
        virtual=st.booleans(),
        torch=text,
        capability=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 9)),
    ),
    release=text,
    settings=st.dictionaries(text, st.integers(0, 1 << 60) | text | st.booleans(), max_size=3),
    start=st.none() | layouts(),
    events=tables(Events, EVENTS, EVENTS),
    end=layouts(),
    dropped=big,
    counter_samples=tables(CounterSamples),
    samples=tables(CardSamples),
    storage_labels=tables(StorageLabels),
    other_processes=st.dictionaries(text, big, max_size=3),
    holders=st.none() | tables(Holders),
    calls=st.none() | tables(Calls),
    collected=st.none() | tables(CollectedFrees),
    block_uses=st.none() | tables(BlockUses),
)

count = st.integers(0, 1 << 20)
ranks = st.builds(
    Rank,
    number=st.integers(0, 99),
    world=st.integers(100, 1 << 20),
    local=st.none() | count,
    host=text,
    pid=count,
    run=st.none() | text,
    card=st.none() | text,
    mesh=st.dictionaries(
        text, st.builds(Coordinate, st.integers(0, 8), st.integers(9, 99)), max_size=3
    ),
    stands_for=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    started_ns=st.integers(0, 1 << 62),
    ended_ns=st.none() | st.integers(0, 1 << 62),
    ended=st.none() | st.sampled_from(["finished", "failed"]),
)


@st.composite
def sessions(draw):
    found = draw(st.lists(devices, max_size=2, unique_by=lambda device: device.info.index))
    places = [
        sorted(draw(st.tuples(st.integers(0, EVENTS), st.integers(0, EVENTS)))) for _ in found
    ]
    span = st.builds(
        Span,
        kind=st.sampled_from(["cell", "phase", "block"]),
        name=text,
        step=st.none() | st.integers(0, 99),
        t0_ns=st.integers(0, 1 << 62),
        t1_ns=st.integers(0, 1 << 62),
        first=st.just(tuple(first for first, _ in places)),
        last=st.just(tuple(last for _, last in places)),
    )
    frames = st.lists(st.builds(Frame, text, st.integers(0, 999), text), max_size=2).map(tuple)
    return Session(
        name=draw(text),
        created_ns=draw(st.integers(0, 1 << 62)),
        devices=tuple(found),
        spans=tuple(draw(st.lists(span, max_size=3))),
        stacks=draw(st.tuples(*[frames] * STACKS)),
        names=draw(st.tuples(*[text] * NAMES)),
        notes=draw(st.lists(text, max_size=3).map(tuple)),
        error=draw(st.none() | text),
        rank=draw(st.none() | ranks),
    )


def plain(value):
    """Convert dataclasses and arrays into comparable values."""
    if isinstance(value, Columns):
        return {name: (array.dtype.str, array.tolist()) for name, array in value.columns()}
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


@given(session=sessions())
@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_what_is_saved_is_opened(session, tmp_path_factory):
    path = save_session(session, tmp_path_factory.mktemp("s") / "x")
    assert path.suffix == ".nbmem"
    assert plain(open_session(path)) == plain(session)


def test_a_recorded_run_survives(tmp_path):
    session = session_of(load("lstm_lm_b32s128_sgd"))
    assert plain(open_session(save_session(session, tmp_path / "run.nbmem"))) == plain(session)


def test_a_file_from_before_the_holders_is_opened(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    rewritten(path, "session.json", lambda d: d.replace(b'"holders_known": false, ', b""))
    assert b"holders" not in zipfile.ZipFile(path).read("session.json")
    assert open_session(path).devices[0].holders is None


def test_the_keys_are_the_formats_whatever_attributes_are_called(tmp_path):
    session = session_of(load("lstm_lm_b32s128_sgd"))
    info = DeviceInfo(
        index=0,
        name="L4",
        total_bytes=7,
        virtual=False,
        torch="2.13.0",
        capability=(8, 9),
        driver_bytes=8,
    )
    span = Span(kind="phase", name="forward", step=2, t0_ns=3, t1_ns=4, first=(0,), last=(0,))
    refusal = Refusal(
        t_ns=1,
        device=0,
        wanted=2,
        free=3,
        limit=4,
        allocated=5,
        reserved=6,
        stack=(Frame("a.py", 1, "f"),),
        layer="fc",
        operator="mm",
        progress=0.5,
        evaluating=True,
        thread="t",
        call=RunningCall(
            block=1,
            blocks=4,
            result=8,
            result_bytes=2,
            labels=True,
            cache=(512,),
            cached=3,
            unread=True,
            offloads=True,
            heads=2,
            tokens_left=5,
            samples=6,
        ),
    )
    session = dataclasses.replace(
        session,
        devices=(dataclasses.replace(session.devices[0], info=info),),
        spans=(span,),
        refusals=(refusal,),
    )
    raw = json.loads(zipfile.ZipFile(save_session(session, tmp_path / "one")).read("session.json"))
    frame = {"file": "a.py", "line": 1, "function": "f"}
    assert raw["spans"] == [
        {
            "kind": "phase",
            "name": "forward",
            "step": 2,
            "parent": None,
            "t0_ns": 3,
            "t1_ns": 4,
            "first": [0],
            "last": [0],
        }
    ]
    assert raw["refusals"] == [
        {
            "t_ns": 1,
            "device": 0,
            "wanted": 2,
            "free": 3,
            "limit": 4,
            "allocated": 5,
            "reserved": 6,
            "stack": [frame],
            "layer": "fc",
            "operator": "mm",
            "progress": 0.5,
            "evaluating": True,
            "thread": "t",
            "call": {
                "block": 1,
                "blocks": 4,
                "result": 8,
                "result_bytes": 2,
                "labels": True,
                "cache": [512],
                "cached": 3,
                "unread": True,
                "offloads": True,
                "heads": 2,
                "tokens_left": 5,
                "samples": 6,
            },
            "decoding": None,
        }
    ]
    assert raw["devices"][0]["info"] == {
        "index": 0,
        "name": "L4",
        "total_bytes": 7,
        "virtual": False,
        "torch": "2.13.0",
        "capability": [8, 9],
        "driver_bytes": 8,
        "kind": "cuda",
        "allocator": "native",
        "shared": False,
        "wddm": False,
        "spilled_bytes": 0,
        "engine": "",
    }


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"There is no file .*gone\.nbmem\. Check the path\."):
        open_session(tmp_path / "gone.nbmem")


def test_a_folder_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        open_session(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 200, 1500])
def test_a_truncated_file_is_a_sentence(tmp_path, keep):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match="is not a whole nbmem session"):
        open_session(path)


def rewritten(path, name, change):
    """Rewrite the file with one member changed."""
    with zipfile.ZipFile(path) as old:
        members = {n: old.read(n) for n in old.namelist()}
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w") as new:
        for n, data in members.items():
            new.writestr(n, data)
    return path


def test_a_newer_format_says_so(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    rewritten(path, "session.json", lambda d: d.replace(b'"format": 2', b'"format": 99'))
    with pytest.raises(FileFormatError, match="has session format 99, this nbmem reads 1 and 2"):
        open_session(path)


def test_a_pickled_column_is_refused(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    hostile = tmp_path / "h.npy"
    np.save(hostile, np.array([{"x": 1}], dtype=object), allow_pickle=True)
    rewritten(path, "0/events/addr.npy", lambda _: hostile.read_bytes())
    with pytest.raises(FileFormatError, match="is not a row of uint8 or int64"):
        open_session(path)


def test_columns_of_different_length_are_refused(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    short = tmp_path / "s.npy"
    np.save(short, np.zeros(1, np.int64))
    rewritten(path, "0/events/addr.npy", lambda _: short.read_bytes())
    with pytest.raises(FileFormatError, match="differ in length"):
        open_session(path)


def test_facts_of_different_length_are_refused(tmp_path):
    path = save_session(fuzzed("streams"), tmp_path / "run.nbmem")
    assert open_session(path).facts["optimizers"][0]["shapes"] == [[16, 16], [512]]
    rewritten(path, "session.json", lambda d: d.replace(b"[[16, 16], [512]]", b"[[16, 16]]"))
    with pytest.raises(FileFormatError, match="facts about the program are not as nbmem writes"):
        open_session(path)
