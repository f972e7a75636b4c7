"""Untrusted files: their type, their size and their pickles."""

import gzip
import io
import json
import lzma
import os
import pickle
import struct
import time
import zipfile

import numpy as np
import pytest

import nbmem
from nbmem.core.errors import FileFormatError, NbmemError
from nbmem.core.files.recording import read_recording
from nbmem.core.files.safe_pickle import load_plain
from nbmem.core.files.session import open_session, save_session
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import read_content
from nbmem.core.units import MIB
from tests.fuzz import bases


def write_file(tmp_path, data, name="x.pickle"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def refusal_text(path, **options):
    with pytest.raises(NbmemError) as caught:
        nbmem.open(path, **options)
    return str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_only_regular_files_are_opened(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, "/dev/zero"):
        assert "is a device, a pipe or a socket and not a file" in refusal_text(path)
    assert "There is no rank's file in" in refusal_text(
        tmp_path
    )  # nbmem.open takes folders of ranks
    assert "There is no file" in refusal_text(tmp_path / "none")
    assert "is no name of a file" in refusal_text("a\0b")


def test_a_link_to_a_file_is_opened_and_so_is_the_home_folder(tmp_path, monkeypatch):
    path = write_file(tmp_path, bases.packed("retry", 4))
    (tmp_path / "link").symlink_to(path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (tmp_path / "link", "~/x.pickle"):
        assert len(nbmem.open(name).session.devices) == 1


def test_the_limit_for_size_is_said_and_can_be_raised(tmp_path):
    path = write_file(tmp_path, bases.packed("retry", 4))
    assert "--max-size 4GiB" in refusal_text(path, max_size="4KiB")
    assert nbmem.open(path, max_size="1MiB").session.devices
    assert "is no limit" in refusal_text(path, max_size=0)
    assert Limits.of("3GiB").events == 3 * Limits().events


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_decompression_bombs_are_refused(tmp_path, pack):
    path = write_file(tmp_path, pack(bytes(64 * MIB)))
    with pytest.raises(FileFormatError, match=r"unpacks to more than .* which no recording does"):
        read_content(path, Limits())
    assert len(read_content(write_file(tmp_path, pack(bytes(1000)) * 2), Limits())) == 2000
    with pytest.raises(FileFormatError, match="more than 64 pieces"):
        read_content(write_file(tmp_path, pack(b"") * 100), Limits())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x04Nr\x00\x65\xcd\x1d.", "has 0x7200"),  # a place in the memo: 5 GiB
        (b"\x80\x04]" + b"\x8e" + struct.pack("<Q", 1 << 40) + b".", "has 0x8e00"),
        (b"\x80\x04" + b"]" * 1_000_000 + b".", "lists and dicts out of"),
        (b"\x80\x04N2\x86.", "has 0x3286"),  # tuples of tuples: hashing them takes for ever
        (b"\x80\x04}K\x00K\x00\x86q\x01h\x01h\x01\x86Ns.", "has 0x864e"),
        (b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".", "has 0x8aff"),  # a number of 613 digits
        (b"\x80\x04X" + struct.pack("<I", 1 << 30) + b"a.", "claims to have"),
        (b"\x80\x04" + b"\x8a\x09" + b"\x7f" * 9 + b"0" * 3 + b"R.", "has 0x522e"),
    ],
)
def test_opcodes_that_no_snapshot_needs_are_not_run(data, says):
    begin = time.process_time()
    with pytest.raises(FileFormatError, match=says):
        load_plain(data)
    assert time.process_time() - begin < 1


def test_wide_numbers_are_few():
    wide = b"\x8a\x09" + b"\xff" * 8 + b"\x00"
    assert load_plain(b"\x80\x04" + wide + b".") == (1 << 64) - 1
    with pytest.raises(FileFormatError, match="has 0x8a09"):
        load_plain(b"\x80\x04" + (wide + b"0") * 2_000 + b"N.")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_may_write_is_read(protocol):
    whole = {
        "text": ["", "a" * 255, "é" * 300, "\ud800"],
        "numbers": [0, 255, -1, 1 << 31, -(1 << 40), (1 << 63) - 1, 1 << 63, 0.5],
        "pools": [(0, 0), (0, 300), (1 << 20, 0)],
        "others": [None, True, False, [], {}, ()],
        "many": [{"line": n, "name": f"f{n % 300}"} for n in range(2_000)],
    }
    assert load_plain(pickle.dumps(whole, protocol=protocol)) == whole


@pytest.mark.parametrize("name", bases.NAMES)
def test_recorded_snapshots_are_still_read(tmp_path, name):
    for protocol in (2, 4, 5):
        session = read_recording(write_file(tmp_path, bases.packed(name, protocol)))
        assert len(session.devices[0].events) > 0


def test_a_session_of_a_snapshot_is_opened_again(tmp_path):
    session = read_recording(write_file(tmp_path, bases.packed("oom", 4)))
    again = open_session(save_session(session, tmp_path / "again.nbmem"))
    assert again.stacks == session.stacks
    assert len(again.devices[0].events) == len(session.devices[0].events)


def with_columns(**columns):
    parts = bases.entries("fragmentation")
    for name, change in columns.items():
        at = "0/" + name.replace("__", "/") + ".npy"
        array = change(np.load(io.BytesIO(parts[at])).copy())
        out = io.BytesIO()
        np.save(out, array)
        parts[at] = out.getvalue()
    return bases.zipped(parts)


def with_value(value, at=0):
    def change(array):
        array[at] = value
        return array

    return change


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: with_columns(events__action=with_value(200)), "events.action has 200"),
        (lambda: with_columns(events__stack=with_value(1 << 40)), "events.stack has"),
        (lambda: with_columns(events__size=with_value(-1)), "events.size has -1"),
        (lambda: with_columns(end__blocks__state=with_value(9)), "blocks.state has 9"),
        (lambda: with_columns(end__blocks__addr=with_value(7)), "lie in no segment"),
        (
            lambda: with_columns(end__segments__size=with_value(1 << 49)),
            "segments at its end overlap",
        ),
        (lambda: with_columns(identities__name=with_value(99)), "identities.name has 99"),
        (lambda: with_columns(identities__category=with_value(99)), "identities.category has 99"),
        (lambda: with_columns(holders__kind=with_value(99)), "holders.kind has 99"),
        (lambda: with_columns(marks__position=with_value(1 << 40)), "marks.position has"),
        (lambda: with_columns(marks__position=lambda a: a[:2]), "differ in length"),
        (
            lambda: with_columns(events__addr=lambda a: a.astype(float)),
            "not a row of uint8 or int64",
        ),
    ],
)
def test_columns_that_refer_to_nothing_are_refused(tmp_path, data, says):
    assert says in refusal_text(write_file(tmp_path, data()))


def with_head(**entries):
    parts = bases.entries("oom")
    head = json.loads(parts["session.json"])
    for name, change in entries.items():
        head[name] = change(head[name])
    parts["session.json"] = json.dumps(head).encode()
    return bases.zipped(parts)


def entry(**values):
    def change(rows):
        rows[-1].update(values)
        return rows

    return change


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: with_head(spans=entry(parent=99)), "has 99 for its parent"),
        (lambda: with_head(spans=entry(last=[1 << 40])), "spans.last has"),
        (lambda: with_head(spans=entry(kind="lap")), "neither a cell nor a phase nor a block"),
        (lambda: with_head(spans=entry(step=True)), "has a bool for its step"),
        (lambda: with_head(spans=lambda rows: rows * 200), "of its spans lie in each other"),
        (lambda: with_head(refusals=entry(progress=2)), "has 2 for its progress"),
        (lambda: with_head(name=lambda _: ["x"]), "has a list for its name"),
        (lambda: with_head(created_ns=lambda _: 10**400), "has too large a number"),
        (lambda: with_head(facts=lambda facts: facts | {"modules": [3]}), "facts about"),
        (lambda: with_head(devices=lambda rows: rows * 2), "not a whole nbmem session"),
    ],
)
def test_json_of_another_shape_is_refused(tmp_path, data, says):
    assert says in refusal_text(write_file(tmp_path, data()))


def test_deep_and_wide_json_is_refused(tmp_path):
    parts = bases.entries("oom")
    for text in ("[" * 100_000, '{"spans": [' + "[]," * 3_000_000 + "[]]}"):
        parts["session.json"] = text.encode()
        assert "is not a whole nbmem session" in refusal_text(
            write_file(tmp_path, bases.zipped(parts))
        )


def corrupt_directory_entry(at, worth, form="<I"):
    """Return an archive with one changed field in its directory."""
    data = bytearray(bases.zipped(bases.entries("oom")))
    struct.pack_into(form, data, data.index(b"PK\x01\x02") + at, worth)
    return bytes(data)


def duplicate_entry_archive():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for _ in range(2):
            archive.writestr("session.json", "{}")
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: bases.zipped({**bases.entries("oom"), "x": bytes(100 * MIB)}), "it unpacks to"),
        (lambda: bases.zipped({str(n): b"" for n in range(12_000)}), "entries; a session has"),
        (lambda: bases.zipped({"n" * 60_000 + str(n): b"" for n in range(90)}, 0), "directory"),
        (lambda: bases.zipped(bases.entries("oom"), zipfile.ZIP_LZMA), "packed in a way"),
        (lambda: corrupt_directory_entry(8, 1, "<H"), "is encrypted"),
        (lambda: corrupt_directory_entry(20, 1 << 20), "overlaps another"),
        (duplicate_entry_archive, "have one name"),
    ],
)
def test_archives_with_false_directories_are_refused(tmp_path, data, says):
    assert says in refusal_text(write_file(tmp_path, data()))


def test_settings_are_told_in_short(tmp_path):
    raw = bases.snapshot("retry")
    raw["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "n" * 1_000_000
    with pytest.raises(NbmemError) as caught:
        nbmem.open(write_file(tmp_path, pickle.dumps(raw))).report()
    assert len(str(caught.value)) < 1_000


def test_sentences_are_short_whatever_the_file_says(tmp_path):
    raw = bases.snapshot("retry")
    raw["device_traces"][0][0]["size"] = "x" * 3_000_000
    raw["segments"][0]["blocks"][0]["state"] = "melting" * 100_000
    assert len(refusal_text(write_file(tmp_path, pickle.dumps(raw)))) < 600
