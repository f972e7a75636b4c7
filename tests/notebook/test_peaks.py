"""Each cell has one peak: in its badge, status bar, sidebar, history, report and JSON."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

pytest.importorskip("ipykernel", reason="ipykernel is not installed")

import torch

from nbmem.core.session.cell_delta import CellPeak
from nbmem.core.units import format_peak
from nbmem.frontends.notebook.extension import _LOADED
from nbmem.frontends.sidebar.messages import CellEnded, LastReport, Sample
from tests.ipython_shell import shell_on_virtual_card
from tests.sidebar.kernel import Kernel

MIB = 1 << 20
DEFINE = """\
import json, time, torch
from pathlib import Path
def take(mib, card=0):
    return torch.empty(mib << 20, dtype=torch.uint8, device=f"cuda:{card}")
kept = take(4)"""
INTERRUPTED = "x = take(70); del x; raise KeyboardInterrupt"


class Case(NamedTuple):
    """A cell, and the peak that it has on a card."""

    code: str
    mib: int
    card: int = 0


CASES = (
    Case("x = take(1000); del x", 1004),
    Case("x = take(600); del x", 604),
    Case("x = take(600); del x", 604),
    Case("pass", 4),
    Case("%%time\nx = take(300); del x", 304),
    Case("get_ipython().run_cell('x = take(310); del x')", 314),
    Case("x = take(500); del x; torch.cuda.reset_peak_memory_stats(); x = take(60); del x", 504),
    Case("assert torch.cuda.max_memory_allocated() == 64 << 20", 4),
    Case("x = take(50); del x; torch.cuda.empty_cache()", 54),
    Case("x = take(200, 1); y = take(100); del x, y", 200, 1),
    Case("x = take(150, 1); y = take(100); del x, y", 150, 1),
    Case("torch.cuda.empty_cache()", 4),  # else the next report may be of the other card
    Case("%%memtrace\nx = take(450); del x", 454),
    Case("%%memtrace\nx = take(30); del x", 34),
    Case("%%memtrace --device 1\nx = take(20, 1); y = take(400); del x, y", 20, 1),
    Case("%%memtrace named\n%time x = take(80); del x", 84),
    Case("x = take(90); del x; 1 / 0", 94),
    Case("%%memtrace\nx = take(40); del x; 1 / 0", 44),
    Case("x = take(46); del x; take(1 << 15)", 50),
    Case("%%memtrace\nx = take(36); del x; take(1 << 15)", 40),
    Case(INTERRUPTED, 74),
    Case(f"%%memtrace\n{INTERRUPTED}", 74),
    Case("assert torch.cuda.max_memory_allocated() == 454 << 20", 4),
)


def expected(case):
    return CellPeak(device=case.card, allocated=case.mib * MIB, exact=True)


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch, "2xT4") as shell:
        shell.run_cell(DEFINE, store_history=True)
        yield shell


def test_a_terminal_lists_the_peak_of_every_cell(shell, capsys):
    for case in CASES:
        shell.run_cell(case.code, store_history=True)
        assert _LOADED[shell].hooks.rows[-1].peak == expected(case), case.code
    capsys.readouterr()
    shell.run_cell("%nbmem history")
    table = capsys.readouterr().out
    figures = [line.split() for line in table.splitlines() if " ms" in line or " s" in line]
    for case, row in zip(CASES, figures[-len(CASES) :], strict=True):
        assert f"{format_peak(case.mib * MIB, exact=True)}" in " ".join(row), case.code
    assert "≥" not in table


def test_a_cell_that_is_not_counted_leaves_the_users_counter_alone(shell):
    rows = _LOADED[shell].hooks.rows
    shell.run_cell("x = take(100); del x", store_history=True)
    shell.run_cell("%nbmem off", store_history=True)
    before = len(rows)
    shell.run_cell("x = take(50); del x", store_history=True)
    assert len(rows) == before
    assert torch.cuda.max_memory_allocated() == 104 * MIB


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run("%load_ext nbmem")
    kernel.run("%nbmem gpu 2xT4")
    kernel.run(DEFINE)
    yield kernel
    kernel.close()


HISTORY = """\
from nbmem.frontends.notebook.extension import _LOADED
from nbmem.views.explorer.data import explorer_data
from nbmem.views.history import render_history, render_history_html
extension = [*_LOADED.values()][0]
row, last = extension.hooks.rows[-1], extension.tracer.last
told = {"line": row.peak.allocated, "text": render_history([row])}
told["html"] = render_history_html([row])
if last is not None and last.cell is not None:
    chosen = last.report(last._options["device"])
    told["explorer"] = explorer_data(chosen, last._history(chosen))["history"][-1]["peak"]
    told["report"] = str(chosen.peak.allocated)
    last.export("json", "PLACE", last._options["device"])
    told["json"] = json.loads(Path("PLACE").read_text())["peak"]["allocated"]
print("TOLD" + json.dumps(told))"""


@pytest.mark.parametrize("case", CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_a_page_shows_one_peak_everywhere(kernel, case, tmp_path):
    ran = kernel.run(case.code)
    (ended,) = ran.pushed(CellEnded)
    assert ended.delta.peak == expected(case), "the badge and the table of cells"
    last = ran.pushed(Sample)[-1:] or [kernel.sample]
    kernel.sample = last[0]
    card = next(one for one in kernel.sample.cards if one.index == case.card)
    assert (card.peak, card.peak_exact) == (case.mib * MIB, True), "status bar and sidebar"
    place = str(tmp_path / "report.json")
    text = kernel.run(HISTORY.replace("PLACE", place), store_history=False).text()
    told = json.loads(text.split("TOLD")[1])
    written = format_peak(case.mib * MIB, exact=True)
    assert told["line"] == case.mib * MIB
    assert written in told["text"]
    assert written in told["html"]
    if case.code.startswith("%%memtrace"):
        (report,) = {one.peak.allocated for one in ran.pushed(LastReport)}
        figures = {report, told["explorer"], int(told["report"]), told["json"]}
        assert figures == {case.mib * MIB}


def test_an_uncounted_cell_has_the_highest_reading_as_the_least(kernel):
    kernel.run("%nbmem off")
    ran = kernel.run("x = take(60); time.sleep(1); del x")
    kernel.run("%nbmem on")
    card = ran.samples()[-1].cards[0]
    assert (card.peak, card.peak_exact) == (64 * MIB, False)
