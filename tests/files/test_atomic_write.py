"""Atomic writes: a whole file or the old one."""

import errno
import os

import pytest

from nbmem.core.errors import NotWrittenError
from nbmem.core.files import atomic_write
from nbmem.core.files.atomic_write import atomic_write as replacing
from nbmem.core.files.atomic_write import write_text
from nbmem.core.session.tensor_names import NAME, printable_text


def test_a_file_is_replaced_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def _cut_short(path, error):
    with replacing(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_what_is_cut_short_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error):
        _cut_short(path, error)
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_a_sentence_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(NotWrittenError, match=r"disk is full\. What was there before is still"):
        _cut_short(path, OSError(errno.ENOSPC, "No space left on device"))
    assert [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_places_that_cannot_be_written_are_sentences(tmp_path, monkeypatch):
    with pytest.raises(NotWrittenError, match="there is no folder"):
        write_text(tmp_path / "no" / "a.txt", "x")
    with pytest.raises(NotWrittenError, match="is a folder"):
        write_text(tmp_path, "x")
    with pytest.raises(NotWrittenError, match="is no name of a file"):
        write_text("a\0b", "x")

    def closed(*_arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(atomic_write.os, "open", closed)
    with pytest.raises(NotWrittenError, match=r"Permission denied.*folder that you may write to"):
        write_text(tmp_path / "a.txt", "x")


def test_links_home_folders_permissions_and_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert write_text("~/link", "new") == link
    assert (link.is_symlink(), target.read_text()) == (True, "new")
    assert target.stat().st_mode & 0o777 == 0o600
    write_text(os.devnull, "gone")
    assert not os.path.isfile(os.devnull)  # noqa: PTH113 - it is still a device


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_write.os, "urandom", bytes)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.txt.00000000.part").symlink_to(victim)
    with pytest.raises(NotWrittenError):
        write_text(tmp_path / "a.txt", "x")
    assert victim.read_text() == "mine"


def test_half_a_surrogate_pair_is_no_reason_to_fail(tmp_path):
    assert write_text(tmp_path / "a.txt", "a\ud800b").read_text() == "a?b"


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("model.0.weight (3,) float32", "model.0.weight (3,) float32"),
        ("Größe 重み", "Größe 重み"),
        ("\x1b[2Ja\nb\ud800\u202e", "\\x1b[2Ja\\nb\\ud800\\u202e"),
        ("n" * 1_000_000, "n" * (NAME - 32) + "... (1,000,000 characters)"),
    ],
)
def test_texts_are_shown_as_they_may_be(text, is_shown):
    assert printable_text(text) == is_shown
    assert printable_text(printable_text(text)) == is_shown
    assert len(printable_text("\x1b" * 5_000)) <= NAME
