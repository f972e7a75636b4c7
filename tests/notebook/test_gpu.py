"""`%nbmem gpu` again: no choice of a card loses live tensors."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch

from nbmem import virtual
from nbmem.api import device_selection
from nbmem.capture.record.cell_deltas import DeltaReader
from nbmem.capture.torch_memory.peak_counters import (
    begin_measuring,
    restore_functions,
    watch_resets,
)
from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.core.session.cell_delta import CellPeak
from nbmem.estimates.runs import worker_processes
from nbmem.frontends.notebook.cell_hooks import CellHooks
from nbmem.frontends.notebook.commands import estimates
from nbmem.frontends.notebook.commands.base import Notebook
from nbmem.frontends.notebook.commands.gpu import switch_card
from nbmem.frontends.notebook.sidebar.sidebar import NotebookActions
from tests.ipython_shell import shell_on_virtual_card

MIB = 2**20
BUILD = "model = torch.nn.Linear(1024, 1024, bias=False).cuda(); x = torch.ones(512, device='cuda')"
LIVE = 4 * MIB + 2048
"""The weight and `x`, in float32."""
LOSES = (
    "Nothing has changed: to leave a virtual NVIDIA H100 80GB HBM3 would lose what lives there, "
    "4.0 MiB (model 4.0 MiB, x 2.0 KiB). Free that first (`%nbmem free NAME`; `%nbmem top` lists "
    "all of it), or give it up with `%nbmem gpu off`, and choose again."
)


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setattr(
        "nbmem.api.device_selection.PATIENCE_S", 60
    )  # all other tests' objects are looked at, too
    with shell_on_virtual_card(monkeypatch) as shell:
        shell.run_cell(BUILD, store_history=True)
        yield shell


@pytest.fixture
def output(shell, capsys):
    def run(line):
        capsys.readouterr()
        assert shell.run_cell(line, store_history=True).success
        out, err = capsys.readouterr()
        return out.strip(), err.strip()

    return run


def hooks_of(shell):
    """Return nbmem's hooks in a shell."""
    owners = [getattr(one, "__self__", None) for one in shell.events.callbacks["pre_run_cell"]]
    return next(owner for owner in owners if type(owner) is CellHooks)


@pytest.mark.parametrize("line", ["h100", "H100 80GB", "'NVIDIA H100 80GB HBM3'", "auto"])
def test_the_same_card_again_changes_nothing(shell, output, line):
    card, addr = virtual.active(), shell.user_ns["x"].data_ptr()
    out, err = output(f"%nbmem gpu {line}")
    assert err == ""
    if line != "auto":
        assert out == "Already on a virtual NVIDIA H100 80GB HBM3: nothing has changed."
    assert virtual.active() is card
    assert torch.cuda.memory_allocated() == LIVE == virtual.live_bytes()
    assert shell.user_ns["x"].data_ptr() == addr
    shell.run_cell("%%memtrace --no-widget\nz = x + x", store_history=True)
    report = hooks_of(shell)._tracer.last.report()
    assert report.ledger_at_end[Category.WEIGHTS] == 4 * MIB


@pytest.mark.parametrize("line", ["%nbmem gpu T4", "%nbmem gpu 2xH100"])
def test_another_card_is_refused_and_what_lives_is_named(output, line):
    card = virtual.active()
    assert output(line) == ("", f"nbmem: {LOSES}")
    assert virtual.active() is card
    assert torch.cuda.memory_allocated() == LIVE


def test_a_cell_that_asks_for_another_card_keeps_this_one_and_runs_untraced(shell, output):
    assert output("%%memtrace --gpu T4\nkept = model.weight.device") == (
        "",
        f"nbmem: {LOSES}\nnbmem: this cell runs untraced.",
    )
    assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
    assert torch.cuda.memory_allocated() == LIVE


def test_another_card_comes_once_nothing_lives(shell, output):
    shell.run_cell("y = model(x.repeat(2, 2))\ndel model, x, y")
    assert (torch.cuda.memory_allocated(), virtual.live_bytes()) == (32 * MIB, 0)  # cuBLAS's own
    out, _ = output("%nbmem gpu T4")
    assert out.startswith("Running on a virtual Tesla T4: ")


def test_off_is_meant_and_says_what_is_lost(output):
    out, _ = output("%nbmem gpu off")
    assert out == (
        "The virtual NVIDIA H100 80GB HBM3 is out; torch.cuda is as it was before. What lived "
        "there cannot be used any more: 4.0 MiB (model 4.0 MiB, x 2.0 KiB)."
    )
    assert virtual.active() is None


def test_the_sidebars_menu_loses_nothing_either(shell):
    hooks = hooks_of(shell)
    actions = NotebookActions(Notebook(shell=shell, tracer=hooks._tracer, hooks=hooks))
    for choice in ("T4", "off"):
        with pytest.raises(UsageError) as refused:
            actions.choose_card(choice)
        assert str(refused.value) == LOSES
    assert actions.choose_card("H100 80GB").startswith("Already on a virtual NVIDIA H100")
    assert torch.cuda.memory_allocated() == LIVE


def test_what_no_name_holds_is_counted_all_the_same():
    with virtual.activated("T4"):
        kept = [torch.ones(MIB // 4, device="cuda")]
        shared = kept[0].view(2, -1)
        with pytest.raises(UsageError, match=r"lives there, 1\.0 MiB"):
            device_selection.use("L4", names={})
        assert virtual.live_bytes() == MIB == shared.untyped_storage().nbytes()


def rows(shell):
    """Return label, peak and remaining bytes of each cell in the history."""
    rows = hooks_of(shell).rows
    assert all(row.peak.exact for row in rows)
    return [(row.label, row.peak.allocated, row.allocated_after) for row in rows]


def test_untraced_cells_have_their_peaks(shell):
    shell.run_cell("y = torch.ones(2 << 20, device='cuda'); del y", store_history=True)
    shell.run_cell("1 + 1", store_history=True)
    shell.run_cell("z = = 1", store_history=True)  # it did not run
    shell.run_cell("%%nbmem fit n --help\nn = 1", store_history=True)  # nor did this
    shell.run_cell(
        "torch.cuda.reset_peak_memory_stats(); y = torch.ones(1 << 20, device='cuda'); del y",
        store_history=True,
    )
    found = rows(shell)[-3:]
    assert [(peak, left) for _, peak, left in found] == [
        (LIVE + 8 * MIB, LIVE),
        (LIVE, LIVE),  # below what the cell before has left the counter at
        (LIVE + 4 * MIB, LIVE),
    ]
    assert found[1][0] == "1 + 1"


def test_the_cell_that_imports_torch_has_its_peak_too():
    reader, meter = DeltaReader(), begin_measuring()
    with virtual.activated("T4"):
        watch_resets()
        begun = time.monotonic_ns()
        kept = torch.ones(MIB, device="cuda")
        more = torch.ones(MIB, device="cuda")
        del more
        reader.before_torch(begun)
        row = reader.after("import torch", None, 1, meter.end())
        assert (row.allocated_before, row.allocated_after) == (0, 4 * MIB)
        assert row.peak == CellPeak(device=0, allocated=8 * MIB, exact=True)
        assert kept.nbytes == row.allocated_delta
        restore_functions()


class _Attended:
    """A shell with a kernel, which a front end with a user, or without one, has asked."""

    def __init__(self, *, attended):
        self.kernel = SimpleNamespace(_allow_stdin=attended)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is prepared")
@pytest.mark.parametrize(
    ("attended", "machine", "expected"),
    [
        (True, (2, 0.4), (True, True)),
        (True, (2, 1.5), (False, True)),  # no core is idle, so the card comes first
        (True, (1, 0.0), (False, False)),
        (False, (8, 0.0), (False, False)),
    ],
)
def test_a_virtual_card_prepares_for_the_first_question(monkeypatch, attended, machine, expected):
    cores, load = machine
    started = []
    monkeypatch.setattr(worker_processes, "prepare", lambda: started.append(True))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    shell = _Attended(attended=attended)
    estimates.prepare_for_card(shell, beside=True)
    beside = bool(started)
    estimates.prepare_for_card(shell)
    assert (beside, bool(started)) == expected


def test_an_unknown_card_starts_no_process(monkeypatch):
    monkeypatch.setattr(worker_processes, "prepare", lambda: pytest.fail("started"))
    with pytest.raises(UsageError, match="T40"):
        switch_card(SimpleNamespace(shell=_Attended(attended=True)), "T40")
