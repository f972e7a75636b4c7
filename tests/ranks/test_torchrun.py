"""Real ranks: processes of torchrun, each with its own file."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

import nbmem
from nbmem.core.errors import UsageError
from nbmem.core.files.rank_journal_reader import read_journal
from nbmem.core.session.categories import RESERVED, Category

pytestmark = pytest.mark.torch
MIB = 1 << 20
ANY_BYTES = re.compile(r"\d+(\.\d+)? [KMG]iB")


@pytest.fixture(scope="module")
def trained(start):
    folder, (process,) = start(agent=True)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return folder, out, err


def test_each_rank_writes_one_file_and_rank_0_alone_speaks(trained):
    folder, out, err = trained
    names = sorted(path.name for path in folder.iterdir())
    assert [name.split(".")[0] for name in names] == ["rank-0-of-2", "rank-1-of-2"]
    assert all(name.endswith(".nbmem") for name in names)  # the journals are taken away
    assert out.count("Ledger  ") == 1
    assert "train.py, rank 0 of 2, on Tesla T4 (virtual)" in out  # card 0: the report is rank 0's
    assert err.count("nbmem:") == 1
    assert "`nbmem report runs/today/` reads them as one." in err


def test_a_rank_knows_its_place_in_the_world(trained):
    for row in nbmem.open(trained[0]).report.rows:
        rank = row.rank
        assert (rank.world, rank.local, rank.ended) == (2, rank.number, "finished")
        assert [(name, at.index, at.size) for name, at in rank.mesh.items()] == [("tp", 0, 1)]
        assert rank.card.startswith("GPU-")
        assert rank.started_ns < rank.ended_ns
    first, second = (row.rank for row in nbmem.open(trained[0]).report.rows)
    assert first.run == second.run
    assert first.card != second.card


def test_the_world_says_what_its_ranks_hold_to_the_byte(trained):
    world = nbmem.open(trained[0])
    report = world.report
    assert (report.size, report.missing, report.shared, report.first_out) == (2, (), (), None)
    assert report.highest.rank.number == 1
    parameters = 4 * (1024 * 1024 + 1024 * 16 + 16)
    spread = {one.category: one for one in report.spreads}
    for category in (Category.WEIGHTS, Category.COMMUNICATION):
        assert (spread[category].low, spread[category].high) == (parameters, parameters)
    inputs = spread[Category.INPUTS]
    assert (inputs.low, inputs.low_rank) == (4 * MIB, 0)
    assert (inputs.high, inputs.high_rank) == (80 * 4 * MIB, 1)
    for row in report.rows:
        assert row.held == dict(
            zip(Category, world.rank(row.rank.number).report().ledger_at_peak.held, strict=True)
        )
        assert sum(row.held.values()) == row.device.total_bytes


def test_a_rank_that_differs_without_a_reason_is_named(trained):
    world = nbmem.open(trained[0])
    (one,) = world.report.imbalances
    first, second = world.report.rows
    assert (one.rank, one.median, one.more) == (1, first.allocated, second.allocated - one.median)
    assert dict(one.by_category)[Category.INPUTS] == 79 * 4 * MIB
    text = " ".join(str(world).split())
    assert text.startswith("Rank 1 of 2 peaks highest: ")
    assert "above the median of the ranks that do the same: " in text
    assert "316.0 MiB more inputs (the largest: " in text
    assert "Give each rank batches of one size: " in text


def test_text_html_and_json_of_a_world_say_the_same(trained, tmp_path):
    folder, *_ = trained
    done = subprocess.run(
        [sys.executable, "-m", "nbmem", "report", folder, "--json", "w.json", "--html", "w.html"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == f"{nbmem.open(folder)}\n"
    found = json.loads((tmp_path / "w.json").read_text())
    assert list(found) == [
        "title",
        "size",
        "ranks",
        "missing",
        "highest",
        "spread",
        "imbalances",
        "first_out",
        "shared_cards",
        "hosts",
        "notes",
    ]
    assert list(found["ranks"][0]) == [
        "rank",
        "host",
        "pid",
        "card",
        "local_rank",
        "mesh",
        "stands_for",
        "run",
        "file",
        "state",
        "started_ns",
        "ended_ns",
        "last_heard_ns",
        "host_peak",
        "device",
        "peak",
        "phase",
        "step",
        "held_at_peak",
        "place",
        "error",
    ]
    page = (tmp_path / "w.html").read_text()
    assert set(ANY_BYTES.findall(" ".join(done.stdout.split()))) <= set(ANY_BYTES.findall(page))
    above, *folded = page.split('<details name="nbmem-rank"')
    assert above.count("<img") == 2  # at the peaks, and over the runs
    assert "<script" not in above
    assert len(folded) == 2


def test_who_ran_out_first_and_what_the_other_held_then(start):
    folder, processes = start("oom", "wait")
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert "torch.OutOfMemoryError" in errors[1]
    assert [process.returncode for process in processes] == [1, 1]  # gloo tells rank 0
    world = nbmem.open(folder)
    out = world.report.first_out
    assert (out.rank, out.refusal.wanted) == (1, 1 << 40)
    (other,) = out.others
    assert (other.rank, other.t_ns) == (0, out.refusal.t_ns)
    assert sum(other.held[category] for category in RESERVED) == other.reserved
    assert sum(other.held.values()) == world.report.rows[0].device.total_bytes
    text = " ".join(str(world).split())
    assert text.startswith("Rank 1 of 2 ran out of memory first, at train.py:21: it asked for ")
    assert "Rank 0 ended by RuntimeError: " in text
    assert "When it ran out" in text


def test_a_world_that_hangs_and_one_that_was_killed_are_told(start):
    folder, processes = start("wait")
    waiting = wait_until(lambda: at_rest(folder), processes)
    world = nbmem.open(folder)
    assert [row.state for row in world.report.rows] == ["running", "running"]
    text = " ".join(str(world).split())
    assert "Rank 0 still runs: in barrier, called at train.py:23" in text
    assert re.search(r"Rank 1 still runs: .*train\.py:25", text)
    for process in processes:
        process.kill()
        process.communicate(timeout=120)
    world = nbmem.open(folder)
    assert [(row.state, row.held) for row in world.report.rows] == [("lost", {})] * 2
    # A process that has imported torch has 50 MiB of its own at least, a checkpoint's pages aside.
    assert all(row.own_peak > 50 * MIB for row in world.report.rows)
    assert all(row.rank.host_bytes > row.own_peak for row in world.report.rows)
    # The counters that torch had, of processes that could not say anything at their end.
    assert world.report.rows[1].allocated >= waiting[1].entries[-1].cards[0].peak > 320 * MIB
    assert "Rank 1 came to no end (killed, or the machine is gone)" in str(world)
    with pytest.raises(UsageError, match="Rank 1 came to no end"):
        world.rank(1)


def at_rest(folder):
    """Return the journals once both ranks wait; else None."""
    journals = [read_journal(path) for path in sorted(folder.glob("*.journal"))]
    if len(journals) < 2 or not all(journal.entries for journal in journals):
        return None
    lines = [journal.entries[-1].place[-1].line for journal in journals]
    return journals if lines == [23, 25] else None


def wait_until(condition, processes):
    end = time.monotonic() + 60
    while (found := condition()) is None:
        assert time.monotonic() < end
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    return found


def test_ranks_cannot_all_write_one_file(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    done = subprocess.run(
        [sys.executable, "-m", "nbmem", "run", "train.py", "--save", "run.nbmem"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "4"},
    )
    assert done.returncode == 2
    assert done.stderr == (
        "nbmem: 4 ranks would write the one file run.nbmem. Name a folder, with a slash at its "
        "end: --save run/\n"
    )
