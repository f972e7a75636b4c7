"""Sessions survive the disk bit by bit; what is no whole session is refused with a sentence."""

import dataclasses
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbmem.core.errors import FileFormatError
from nbmem.core.events import Blocks, Columns, Events, Frame, Layout, Segments
from nbmem.core.session import (
    DeviceInfo,
    DeviceTrace,
    Holders,
    Identities,
    Marks,
    Samples,
    Session,
)
from nbmem.core.session_file import open_session, save_session
from nbmem.core.spans import Span
from tests.recorded import load, session_of

CODES = {"action", "category", "expandable", "kind", "small", "state"}


@st.composite
def tables(draw, kind):
    n = draw(st.integers(0, 5))
    return kind(
        **{
            field.name: draw(hnp.arrays(np.uint8 if field.name in CODES else np.int64, n))
            for field in dataclasses.fields(kind)
        }
    )


layouts = st.builds(Layout, segments=tables(Segments), blocks=tables(Blocks))
text = st.text(max_size=20)
devices = st.builds(
    DeviceTrace,
    info=st.builds(
        DeviceInfo,
        index=st.integers(0, 7),
        name=text,
        total_bytes=st.integers(0, 1 << 40),
        virtual=st.booleans(),
        torch=text,
        capability=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 9)),
    ),
    release=text,
    settings=st.dictionaries(text, st.integers() | text | st.booleans(), max_size=3),
    start=st.none() | layouts,
    events=tables(Events),
    end=layouts,
    dropped=st.integers(0, 1 << 40),
    marks=tables(Marks),
    samples=tables(Samples),
    identities=tables(Identities),
    other_processes=st.dictionaries(text, st.integers(0, 1 << 40), max_size=3),
    holders=st.none() | tables(Holders),
)
spans = st.builds(
    Span,
    kind=st.sampled_from(["cell", "phase", "block"]),
    name=text,
    step=st.none() | st.integers(0, 99),
    parent=st.none() | st.integers(0, 9),
    t0_ns=st.integers(0, 1 << 62),
    t1_ns=st.integers(0, 1 << 62),
    first=st.tuples(st.integers(0, 9)),
    last=st.tuples(st.integers(0, 9)),
)
sessions = st.builds(
    Session,
    name=text,
    created_ns=st.integers(0, 1 << 62),
    devices=st.lists(devices, max_size=2).map(tuple),
    spans=st.lists(spans, max_size=3).map(tuple),
    stacks=st.lists(
        st.lists(st.builds(Frame, text, st.integers(0, 999), text), max_size=2).map(tuple),
        max_size=2,
    ).map(tuple),
    names=st.lists(text, max_size=3).map(tuple),
    notes=st.lists(text, max_size=3).map(tuple),
    error=st.none() | text,
)


def plain(value):
    """Dataclasses and arrays as something that compares."""
    if isinstance(value, Columns):
        return {name: (array.dtype.str, array.tolist()) for name, array in value.columns()}
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


@given(session=sessions)
@settings(max_examples=40, deadline=None)
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


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(FileFormatError, match=r"There is no file .*gone\.nbmem\. Check the path\."):
        open_session(tmp_path / "gone.nbmem")


def test_a_folder_is_a_sentence(tmp_path):
    with pytest.raises(FileFormatError, match="is a folder"):
        open_session(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 200, 1500])
def test_a_truncated_file_is_a_sentence(tmp_path, keep):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match="is not a whole nbmem session"):
        open_session(path)


def rewritten(path, name, change):
    """The same file with one member changed."""
    with zipfile.ZipFile(path) as old:
        members = {n: old.read(n) for n in old.namelist()}
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w") as new:
        for n, data in members.items():
            new.writestr(n, data)
    return path


def test_a_newer_format_says_so(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    rewritten(path, "session.json", lambda d: d.replace(b'"format": 1', b'"format": 99'))
    with pytest.raises(FileFormatError, match="has session format 99, this nbmem reads 1"):
        open_session(path)


def test_a_pickled_column_is_refused(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    hostile = tmp_path / "h.npy"
    np.save(hostile, np.array([{"x": 1}], dtype=object), allow_pickle=True)
    rewritten(path, "0/events/addr.npy", lambda _: hostile.read_bytes())
    with pytest.raises(FileFormatError, match="allow_pickle"):
        open_session(path)


def test_columns_of_different_length_are_refused(tmp_path):
    path = save_session(session_of(load("lstm_lm_b32s128_sgd")), tmp_path / "run.nbmem")
    short = tmp_path / "s.npy"
    np.save(short, np.zeros(1, np.int64))
    rewritten(path, "0/events/addr.npy", lambda _: short.read_bytes())
    with pytest.raises(FileFormatError, match="differ in length"):
        open_session(path)
