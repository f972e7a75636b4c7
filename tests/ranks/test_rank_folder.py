"""Folders of ranks, and the notes on an incomplete world."""

import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

import nbmem
from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.files.rank_folder import journal_file, journal_name, session_name
from nbmem.core.files.rank_journal import CardState, Entry, JournalFile
from nbmem.core.files.rank_journal_reader import read_journal
from nbmem.core.files.session import save_session
from nbmem.core.session.categories import Category
from nbmem.core.session.events import Frame
from nbmem.core.session.oom import Refusal
from nbmem.core.session.ranks import Coordinate, Rank, numbers_text
from nbmem.core.units import format_bytes
from nbmem.views.world import render_world
from tests.recorded_runs import load, session_of

SESSION = session_of(load("lstm_lm_b32s128_sgd"))
GIB = 1 << 30


def rank(number, world=4, **more):
    known = {"host": "node", "pid": 100 + number, "run": "today", "card": f"GPU-{number}"}
    return Rank(
        **{"number": number, "world": world, "started_ns": 10, "ended": "finished"} | known | more
    )


def write(folder, *ranks, session=SESSION):
    for one in ranks:
        save_session(replace(session, rank=one), folder / session_name(one))


def journal(folder, one, *entries):
    file = JournalFile(folder / journal_name(one))
    file.begin(one, "train.py")
    file.add_card(SESSION.devices[0].info)
    for entry in entries:
        file.add(entry)
    return file


def entry(t_ns, allocated, **more):
    card = CardState(
        index=0, allocated=allocated, reserved=2 * GIB, peak=allocated, known={"weights": 7}
    )
    return Entry(t_ns=t_ns, phase="forward", step=3, cards=(card,), **more)


def test_a_whole_world_has_nothing_odd(tmp_path):
    write(tmp_path, *map(rank, range(4)))
    report = nbmem.open(tmp_path).report
    assert (report.size, report.missing, report.notes, report.imbalances) == (4, (), (), ())
    assert len(report.rows) == 4
    assert "0-3   finished" in render_world(report)


def test_ranks_that_fill_their_host_are_told_so(tmp_path):
    """A killed one left its journal, the others their sessions; each counts at its highest."""
    there = {"host_bytes": 40 * GIB}
    devices = tuple(replace(d, info=replace(d.info, virtual=False)) for d in SESSION.devices)
    real = replace(SESSION, devices=devices)
    write(tmp_path, *(rank(n, 3, own_peak=11 * GIB, **there) for n in (0, 1)), session=real)
    moments = [entry(10**9 * n, GIB, own=own * GIB) for n, own in enumerate((3, 12, 9), 1)]
    journal(tmp_path, rank(2, 3, ended=None, pid=2**22 + 1, **there), *moments)
    world = nbmem.open(tmp_path)
    (host,) = world.report.hosts
    assert (host.host, host.total, host.ranks) == ("node", 40 * GIB, (0, 1, 2))
    assert host.together == (11 + 11 + 12) * GIB
    text = " ".join(str(world).split())
    assert "The 3 ranks of node took 34.00 GiB of the host's 40.00 GiB, each at its highest" in text
    assert [one["host_peak"] for one in world.to_json()["ranks"]] == [11 * GIB, 11 * GIB, 12 * GIB]
    assert world.to_json()["hosts"][0]["together"] == host.together


def test_a_host_with_room_and_one_of_virtual_ranks_are_not_spoken_of(tmp_path):
    write(tmp_path, *(rank(n, 2, own_peak=GIB, host_bytes=40 * GIB) for n in (0, 1)))
    world = nbmem.open(tmp_path)
    virtual = all(row.device.virtual for row in world.report.rows)
    assert bool(world.report.hosts) is not virtual
    assert "of the host's" not in " ".join(str(world).split())


def test_a_missing_rank_is_named(tmp_path):
    write(tmp_path, rank(0), rank(3))
    report = nbmem.open(tmp_path).report
    assert report.missing == (1, 2)
    assert "There is no file of ranks 1, 2: never started, not traced" in render_world(report)
    with pytest.raises(UsageError, match="no file of rank 2; there is one of ranks 0, 3"):
        nbmem.open(tmp_path).rank(2)


def test_ranks_of_virtual_cards_are_missing_because_nobody_ran_them(tmp_path):
    devices = tuple(replace(d, info=replace(d.info, virtual=True)) for d in SESSION.devices)
    write(tmp_path, rank(0), rank(3), session=replace(SESSION, devices=devices))
    text = " ".join(render_world(nbmem.open(tmp_path).report).split())
    assert "There is no file of ranks 1, 2: not run, or ended before they wrote one." in text


def test_a_rank_that_others_stand_for_is_not_missing(tmp_path):
    write(tmp_path, rank(0, 64, stands_for=tuple(range(1, 63))), rank(63, 64))
    report = nbmem.open(tmp_path).report
    assert report.missing == ()
    assert "0-63 (run: 0, 63)" in render_world(report)


def test_files_of_another_run_are_left_out_and_named(tmp_path):
    write(tmp_path, rank(0, run="yesterday", started_ns=5, pid=1), rank(0), rank(1))
    report = nbmem.open(tmp_path).report
    assert [row.rank.run for row in report.rows] == ["today", "today"]
    (note,) = report.notes
    assert note.startswith("rank-0-of-4.node.1.nbmem is of another run (it began at ")


def test_processes_that_know_nothing_of_each_other_are_numbered(tmp_path):
    def alone(pid, begun, ended):
        return rank(0, 1, run=None, pid=pid, started_ns=begun, ended_ns=ended)

    write(tmp_path, alone(5, 10, 20), alone(9, 31, 40), alone(7, 30, 45))
    report = nbmem.open(tmp_path).report
    assert [(row.rank.number, row.rank.pid) for row in report.rows] == [(0, 7), (1, 9)]
    assert report.size == 2
    earlier, unknown = report.notes
    assert earlier.startswith("rank-0-of-1.node.5.nbmem is of another run")
    assert unknown.startswith("These 2 processes know nothing of each other")
    assert nbmem.open(tmp_path).rank(1).session.rank.pid == 9


def test_of_two_that_claim_a_number_the_later_is_shown(tmp_path):
    write(tmp_path, rank(1, pid=7, started_ns=20), rank(1, pid=8, started_ns=30), rank(0, 2))
    report = nbmem.open(tmp_path).report
    assert [row.rank.pid for row in report.rows] == [100, 8]
    assert report.notes[0] == (
        "Two processes say that they were rank 1: rank-1-of-4.node.8.nbmem is shown, which began "
        "later, and rank-1-of-4.node.7.nbmem is left out."
    )
    assert report.notes[1].startswith("The ranks do not agree on how many they are: ")


def test_foreign_and_broken_files_are_named_and_left_alone(tmp_path):
    write(tmp_path, *map(rank, range(4)))
    (tmp_path / "loss.csv").write_text("1,2")
    (tmp_path / ".hidden").write_text("1,2")
    (tmp_path / "broken.nbmem").write_bytes(b"PK no archive")
    (tmp_path / "empty.journal").write_text("")
    save_session(SESSION, tmp_path / "alone.nbmem")
    notes = nbmem.open(tmp_path).report.notes
    assert [note.split()[0] for note in notes] == [
        "alone.nbmem",
        "broken.nbmem",
        "empty.journal",
        "loss.csv",
    ]
    assert "belongs to no world" in notes[0]
    assert len(nbmem.open(tmp_path).report.rows) == 4


@pytest.mark.parametrize("name", ["empty", "nowhere/"])
def test_a_folder_without_ranks_is_refused_with_what_to_do(tmp_path, name):
    (tmp_path / "empty").mkdir()
    path = f"{tmp_path}/{name}"
    with pytest.raises(UsageError) as refused:
        nbmem.open(path)
    expected = "There is no rank's file in" if name == "empty" else "There is no folder"
    assert str(refused.value).startswith(expected)


def test_versions_that_differ_are_said(tmp_path):
    write(tmp_path, rank(0, 2))
    device = SESSION.devices[0]
    older = replace(device, info=replace(device.info, torch="2.6.0"))
    write(tmp_path, rank(1, 2), session=replace(SESSION, devices=(older,)))
    (note,) = nbmem.open(tmp_path).report.notes
    assert "different versions of torch" in note
    assert "2.6.0 (rank 1)" in note


def test_stages_of_a_pipeline_differ_with_a_reason(tmp_path):
    def mesh(stage):
        return {"pp": Coordinate(stage, 2), "dp": Coordinate(0, 1)}

    larger = session_of(load("ddp_resnet50_b32_sgdm"))
    write(tmp_path, rank(0, 2, mesh=mesh(0)))
    write(tmp_path, rank(1, 2, mesh=mesh(1)), session=larger)
    assert nbmem.open(tmp_path).report.imbalances == ()
    write(tmp_path, rank(0, 2), session=SESSION)
    write(tmp_path, rank(1, 2), session=larger)
    (one,) = nbmem.open(tmp_path).report.imbalances
    text = " ".join(render_world(nbmem.open(tmp_path).report).split())
    assert one.cause is Category.ACTIVATIONS
    assert f"{format_bytes(dict(one.by_category)[one.cause])} more activations" in text
    assert "Its samples are larger, or its layers: give each rank batches of one size." in text
    assert one.rank == max(nbmem.open(tmp_path).report.rows, key=lambda r: r.allocated).rank.number


def test_a_card_of_two_ranks_is_said(tmp_path):
    write(tmp_path, rank(0, 2, card="GPU-a"), rank(1, 2, card="GPU-a"))
    (card,) = nbmem.open(tmp_path).report.shared
    row = nbmem.open(tmp_path).report.rows[0]
    assert (card.ranks, card.together) == ((0, 1), 2 * (row.process or row.reserved))
    write(tmp_path, rank(0, 2, card="0", host="a"), rank(1, 2, card="0", host="b"))
    assert len(nbmem.open(tmp_path).report.rows) == 2


def test_a_journal_is_read_as_far_as_it_came(tmp_path):
    line = Frame("train.py", 7, "step")
    one = rank(0, 1, ended=None, ended_ns=None, host="elsewhere")
    file = journal(tmp_path, one, entry(1, GIB), entry(2, GIB // 2, place=(line,)))
    file.add_refusal(Refusal(t_ns=3, device=0, wanted=9, free=8))
    file.write_rank(replace(one, ended="failed", ended_ns=4), "RuntimeError: no")
    file.close(remove=False)
    with file.path.open("a") as more:
        more.write('{"t_ns": 9, "ca')  # killed within a line
    found = read_journal(file.path)
    assert [e.t_ns for e in found.entries] == [1, 2]
    assert found.entries[1].place == (line,)
    assert found.entries[0].cards[0].known == {"weights": 7}
    assert (found.rank.ended, found.error, found.refusals[0].wanted) == (
        "failed",
        "RuntimeError: no",
        9,
    )
    (row,) = nbmem.open(tmp_path).report.rows
    assert (row.state, row.allocated, row.refusal.wanted) == ("failed", GIB, 9)


def test_what_others_held_is_the_last_that_they_wrote_before(tmp_path):
    first = rank(0, 2, ended=None, host="elsewhere")
    file = journal(tmp_path, first, entry(5, GIB))
    file.add_refusal(Refusal(t_ns=30, device=0, wanted=9, free=8))
    other = rank(1, 2, ended=None, host="elsewhere")
    journal(tmp_path, other, entry(10, GIB), entry(20, 2 * GIB), entry(40, 3 * GIB))
    (then,) = nbmem.open(tmp_path).report.first_out.others
    assert (then.rank, then.t_ns, then.allocated) == (1, 20, 2 * GIB)
    assert then.held == {Category.WEIGHTS: 7}


def test_a_world_that_has_not_moved_for_long_hangs(tmp_path):
    for number, line in enumerate((11, 12)):
        place = (Frame("distributed_c10d.py", 1, "barrier"), Frame("train.py", line, "<module>"))
        one = rank(number, 2, ended=None, host="elsewhere")
        journal(tmp_path, one, *(entry(t * 10**9, GIB, place=place) for t in (1, 15)))
    text = " ".join(str(nbmem.open(tmp_path)).split())
    assert "Nothing has moved on any rank for 14.00 s: they hang" in text
    assert "Rank 0 still runs: in barrier, called at train.py:11, step 3 for 14.00 s." in text


@pytest.mark.parametrize(
    "text",
    ["[]\n", '{"journal": 2}\n', '{"journal": 1, "name": "x", "rank": {}}\n', "\xff\n", "{\n"],
)
def test_what_is_no_journal_is_refused(tmp_path, text):
    path = tmp_path / "x.journal"
    path.write_text(text)
    with pytest.raises(FileFormatError, match="is not the journal of a rank"):
        read_journal(path)


def test_ranks_are_written_as_a_person_does():
    assert numbers_text([3]) == "rank 3"
    assert numbers_text([0, 1]) == "ranks 0, 1"
    assert numbers_text([7, 2, 3, 4, 0]) == "ranks 0, 2-4, 7"


def lives(tmp_path, pid):
    file = journal(tmp_path, rank(0, host=socket.gethostname(), pid=pid), entry(1, 512))
    try:
        return journal_file(file.path, read_journal(file.path)).lives
    finally:
        file.close(remove=True)


def test_whether_a_rank_lives(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = [lives(tmp_path, pid) for pid in (os.getpid(), ended.pid, 1 << 62)]
    assert found == [True, False, False]


def test_whether_a_rank_lives_is_asked_without_a_signal(tmp_path, monkeypatch):
    """On Windows `os.kill(pid, 0)` is a Ctrl-C for the process and its kin."""
    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("a signal was sent"))
    monkeypatch.setattr("psutil.pid_exists", lambda pid: pid == 77)
    assert [lives(tmp_path, pid) for pid in (77, 78)] == [True, False]


def test_a_journal_is_written_as_bytes(tmp_path, monkeypatch):
    """Windows makes two bytes of a line's end in what is not opened as binary."""
    binary, opened = 1 << 20, []
    real = os.open
    monkeypatch.setattr("os.O_BINARY", binary, raising=False)
    monkeypatch.setattr(
        "os.open",
        lambda path, flags, mode: opened.append(flags) or real(path, flags & ~binary, mode),
    )
    journal(tmp_path, rank(0)).close(remove=True)
    assert [flags & binary for flags in opened] == [binary]
