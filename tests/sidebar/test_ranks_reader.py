"""Ranks in other processes, as the sidebar follows them."""

import os
import socket
from dataclasses import replace

import pytest

from nbmem.core.errors import FileFormatError
from nbmem.core.files.rank_folder import journal_name, session_name
from nbmem.core.files.rank_journal import CardState, Entry, JournalFile
from nbmem.core.files.rank_journal_reader import JournalTail
from nbmem.core.files.session import read_rank, save_session
from nbmem.core.session.events import Frame
from nbmem.core.session.ranks import Rank, as_one_world
from nbmem.frontends.notebook.engines import ranks_folders
from nbmem.frontends.sidebar import ranks_reader as live
from nbmem.frontends.sidebar.rank_messages import MOST_RANKS
from tests.recorded_runs import load, session_of

SESSION = session_of(load("lstm_lm_b32s128_sgd"))
BEGUN = 1_700_000_000 * 10**9
GIB = 1 << 30


def rank(number, world=4, **more):
    known = {"host": socket.gethostname(), "pid": os.getpid(), "started_ns": BEGUN + number}
    return Rank(**{"number": number, "world": world, **known, **more})


def begin(folder, one):
    file = JournalFile(folder / journal_name(one))
    file.begin(one, "train.py")
    file.add_card(SESSION.devices[0].info)
    return file


def entry(allocated, step=0, known=None, place=()):
    card = CardState(
        index=0, allocated=allocated, reserved=2 * GIB, peak=allocated + 512, known=known or {}
    )
    return Entry(t_ns=BEGUN, phase="forward", step=step, cards=(card,), place=place)


@pytest.fixture
def reader(tmp_path):
    """Looks again, each time."""
    followed = live.RanksReader(BEGUN)
    return lambda *folders: followed.read(folders or (tmp_path,), final=True)


def test_ranks_are_told_as_they_write(tmp_path, reader):
    assert reader() is None
    files = [begin(tmp_path, rank(number)) for number in (1, 0)]
    assert [row.allocated for row in reader().ranks] == [None, None]
    place = (Frame("/x/torch/distributed.py", 9, "all_reduce"), Frame("/x/train.py", 41, "step"))
    known = {"weights": 100, "optimizer_state": 200, "gradients": 50}
    files[0].add(entry(1000, step=3, known=known, place=place))
    told = reader()
    assert (told.size, told.left_out, told.folder) == (4, 0, str(tmp_path))
    zero, one = told.ranks
    assert (zero.number, zero.state, zero.allocated) == (0, "running", None)
    assert (one.number, one.phase, one.step) == (1, "forward", 3)
    assert (one.allocated, one.peak, one.reserved) == (1000, 1512, 2 * GIB)
    assert one.total == SESSION.devices[0].info.total_bytes
    assert [(key, size) for key, _, size in one.by_category] == [
        ("weights", 100), ("gradients", 50), ("optimizer_state", 200), ("rest", 650),
    ]  # fmt: skip
    assert one.at.startswith("in all_reduce, called at ")
    assert one.at.endswith("train.py:41")
    assert reader() is None, "nothing has changed"
    files[1].add(entry(7))
    assert reader().ranks[0].allocated == 7


def test_between_two_looks_is_a_second(tmp_path):
    followed = live.RanksReader(BEGUN)
    begin(tmp_path, rank(0))
    assert followed.read([tmp_path]) is not None
    begin(tmp_path, rank(1))
    assert followed.read([tmp_path]) is None
    assert len(followed.read([tmp_path], final=True).ranks) == 2


def test_an_end_is_told_with_its_error(tmp_path, reader):
    ends = [(0, "finished", None), (1, "failed", "OutOfMemoryError: CUDA out of memory.")]
    for number, _, _ in ends:
        begin(tmp_path, rank(number)).add(entry(1000))
    reader()
    for number, ended, error in ends:
        whole = replace(SESSION, rank=rank(number, ended=ended), error=error)
        save_session(whole, tmp_path / session_name(rank(number)))
        (tmp_path / journal_name(rank(number))).unlink()
        assert read_rank(tmp_path / session_name(rank(number))) == (whole.rank, error)
    told = [(row.number, row.state, row.error) for row in reader().ranks]
    assert told == ends
    assert reader() is None


def test_no_cell_waits_for_many_sessions(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(live, "PATIENCE_S", 0.0)
    begin(tmp_path, rank(0)).close(remove=True)
    begin(tmp_path, rank(0))
    reader()
    save_session(replace(SESSION, rank=rank(0, ended="finished")), tmp_path / session_name(rank(0)))
    (tmp_path / journal_name(rank(0))).unlink()
    assert reader().ranks[0].state == "ended"
    monkeypatch.undo()
    assert reader().ranks[0].state == "finished"


def test_a_process_that_is_gone_without_a_word_is_lost(tmp_path, reader):
    begin(tmp_path, rank(0, pid=2**22 + 1)).add(entry(1000))
    assert reader().ranks[0].state == "lost"


def test_what_began_before_the_cell_is_another_run(tmp_path, reader):
    begin(tmp_path, rank(0, started_ns=BEGUN - 1))
    begin(tmp_path, rank(1, host="other", started_ns=BEGUN - 10**9))  # its clock is a bit slow
    begin(tmp_path, rank(2, host="other", started_ns=BEGUN - 100 * 10**9))
    assert [row.number for row in reader().ranks] == [1]


def test_of_two_that_claim_a_number_the_later_one_is_shown(tmp_path, reader):
    begin(tmp_path, rank(0, pid=1)).add(entry(1))
    begin(tmp_path, rank(0, started_ns=BEGUN + 9)).add(entry(2))
    assert [row.allocated for row in reader().ranks] == [2]


def test_engines_that_know_nothing_of_each_other_are_numbered(tmp_path, reader):
    for pid in (30, 10, 20):
        begin(tmp_path, rank(0, world=1, host="node", pid=pid)).add(entry(pid))
    told = reader()
    assert told.size == 3
    assert [(row.number, row.allocated) for row in told.ranks] == [(0, 10), (1, 20), (2, 30)]
    alone = rank(0, world=1)
    assert as_one_world([alone]) == [alone]


def test_a_large_world_is_told_by_its_highest(tmp_path, reader):
    count = MOST_RANKS + 6
    for number in range(count):
        begin(tmp_path, rank(number, world=count)).add(entry(number))
    told = reader()
    assert (len(told.ranks), told.left_out, told.ranks[0].number) == (MOST_RANKS, 6, 6)


def test_the_folder_in_which_ranks_began_last_is_told(tmp_path, reader):
    first, second, missing = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder, number in ((first, 0), (second, 1)):
        folder.mkdir()
        begin(folder, rank(number))
    assert reader(missing, second, first).folder == str(second)


def test_files_of_others_harm_nothing(tmp_path, reader):
    (tmp_path / "x.journal").write_text("no journal\n")
    (tmp_path / "y.journal").write_bytes(os.urandom(3 << 20).replace(b"\n", b" "))
    (tmp_path / "z.journal").mkdir()
    begin(tmp_path, rank(0)).add(entry(5))
    for _ in range(4):
        reader()
    begin(tmp_path, rank(1))
    assert [row.number for row in reader().ranks] == [0, 1]


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / journal_name(rank(0))
    file = begin(tmp_path, rank(0))
    file.add(entry(1))
    whole = path.read_bytes()
    grows = tmp_path / "grows.journal"
    tail = JournalTail(grows)
    seen = []
    for end in range(len(whole) + 1):
        grows.write_bytes(whole[:end])
        now = tail.latest()
        seen.append(None if now is None else len(now.entries))
    assert seen[-1] == 1
    assert seen[-2] == 0
    assert seen[0] is None
    grows.write_bytes(whole + b"{\n")
    with pytest.raises(FileFormatError, match="not the journal of a rank"):
        tail.latest()


@pytest.mark.parametrize(
    ("cell", "folders"),
    [
        ("%%px\n%%memtrace --save runs/a/\ntrain()", ["runs/a"]),
        ("!torchrun --nproc-per-node 4 -m nbmem run train.py --save runs/b/", ["runs/b"]),
        ("%%bash\ntorchrun -m nbmem run --save=runs/c/ \\\n  train.py --epochs 3", ["runs/c"]),
        ("!nbmem run train.py \\\n  --save runs/d/", ["runs/d"]),
        ("!nbmem run train.py --save one.nbmem", []),
        ("%%memtrace --save runs/e/\ntrain()", []),
        ("loss.backward()", []),
    ],
)
def test_where_a_cell_lets_ranks_write(cell, folders):
    assert [str(one) for one in ranks_folders(cell)] == folders


def test_where_recorded_functions_write_is_followed(tmp_path, monkeypatch):
    import nbmem
    from nbmem.api import rank_recording

    monkeypatch.setattr(rank_recording, "WRITTEN", type(rank_recording.WRITTEN)(maxlen=8))
    nbmem.recorded(print, tmp_path / "runs")
    nbmem.recorded(print, tmp_path / "runs")
    assert list(ranks_folders("mp.spawn(f)")) == [tmp_path / "runs"]
