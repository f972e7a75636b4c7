"""The variables of the functions that a traced cell calls."""

import _thread
import gc
import re
import sys
import time
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no memory without torch")

import nbmem
from nbmem.capture.hooks.function_calls import FunctionCalls
from nbmem.capture.record.recorder import Recorder
from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HolderKind
from nbmem.frontends.notebook.extension import loaded_tracer
from nbmem.report.analysis.before_return import ledger_before_return
from nbmem.report.ledger.card_ledger import CardLedger
from tests.ipython_shell import shell_on_virtual_card

MIB = 1 << 20
TRAIN = """
def train(model, steps):
    kept = []
    for step in range(steps):
        out = model(torch.ones(8192, 1024, device="cuda"))
        kept.append(out.detach() + 1)
        out.sum().backward()
        model.zero_grad()
    return steps
"""
FUNCTIONS = """
import contextlib
def f(x):
    y = x + 1
    return y
def g(x):
    z = f(x)
    return z
def big(n):
    x = torch.ones(1024 * 2 ** (2 * n - 5), device="cuda")
    return None
async def h(x):
    return x
class A:
    def m(self):
        inside = 1
        return inside
"""


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch, "T4") as shell:
        shell.run_cell("model = torch.nn.Linear(1024, 1024).cuda()" + TRAIN)
        shell.run_cell(FUNCTIONS)
        yield shell


@pytest.fixture
def session(shell):
    def session(cell):
        shell.run_cell(cell, store_history=True)
        return loaded_tracer(shell).last.session

    return session


def allocated():
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("cell", ["%%memtrace\ntrain(model, 6)", "%memtrace train(model, 6)"])
def test_what_a_function_held_is_known_and_freed(shell, session, cell):
    shell.run_cell("train(model, 1)")  # cuBLAS has its workspace
    before = allocated()
    trace = session(cell).devices[0]
    assert allocated() == before
    assert not shell.ast_transformers
    then = trace.before_return
    assert then.function == "train"
    ledger = CardLedger(loaded_tracer(shell).last.session)
    assert ledger.allocated[-1] == before
    cut = ledger_before_return(ledger)
    assert (ledger.allocated[: then.event + 1] == cut.allocated).all()
    assert cut.allocated[-1] - before == (6 + 1) * 32 * MIB, "kept and out"
    names = {h.name: h.size for h in cut.storages}
    assert [names[f"kept[{i}]"] for i in range(6)] == [32 * MIB] * 6
    held = cut.ledger(cut.events).held, ledger.ledger(then.event).held
    assert sum(held[0]) == sum(held[1])


def test_tips_name_the_variables_of_the_function(shell, session):
    session("%%memtrace\ntrain(model, 6)")
    tips = loaded_tracer(shell).last.report().findings
    assert [tip.rule for tip in tips] == ["grows_each_step"]
    assert tips[0].title.startswith("In train(): `kept` grows by 32.0 MiB")
    assert tips[0].command is None
    report = loaded_tracer(shell).last.report()
    assert report.ledger_at_end[Category.USER_TENSORS] == 0
    names = [held.name for held in report.holdings]
    assert "kept[0] (8192, 1024) float32" in names


def test_a_saved_session_gives_the_same_tips(shell, session, tmp_path):
    session(f"%%memtrace --save {tmp_path / 'run.nbmem'}\ntrain(model, 6)")
    opened = nbmem.open(tmp_path / "run.nbmem").report()
    assert opened.findings == loaded_tracer(shell).last.report().findings
    assert opened.findings


def test_a_variable_of_the_notebook_keeps_its_name(shell, session):
    shell.run_cell("kept = torch.zeros(1024, 1024, device='cuda')")
    session("%%memtrace\ntrain(model, 6)")
    ledger = CardLedger(loaded_tracer(shell).last.session)
    names = {h.name: h.size for h in ledger_before_return(ledger).storages}
    assert names["kept"] == 4 * MIB


def test_objects_of_the_function_die_with_the_cell(shell):
    shell.run_cell(
        "import weakref\nclass Thing: pass\ndef make():\n    thing = Thing()\n"
        "    x = torch.ones(1024, 1024, device='cuda')\n    return weakref.ref(thing)"
    )
    gc.disable()
    try:
        shell.run_cell("%%memtrace\nref = make()")
        ref = shell.user_ns["ref"]
        assert isinstance(ref, weakref.ref)
        assert ref() is None
    finally:
        gc.enable()


def test_a_function_that_failed_has_its_variables_in_the_traceback(shell, session):
    made = "torch.ones(1024, 1024, device='cuda')"
    session(f"%%memtrace\ndef fail():\n    x = {made}\n    1 / 0\nfail()")
    ledger = CardLedger(loaded_tracer(shell).last.session)
    assert "x" in [one.name for one in ledger_before_return(ledger).storages]
    kinds = {one.name: one.holders[0].kind for one in ledger.storages}
    name = next(name for name in kinds if name.startswith("local x of fail() in the traceback"))
    assert kinds[name] is HolderKind.TRACEBACK


@pytest.fixture
def called(shell):
    """Run a cell; return the functions that were told, with their variables."""

    def called(cell):
        found = []

        def returned(call):
            found.append((call.frame.f_code.co_name, {**call.frame.f_locals}))
            call.frame = None

        calls = FunctionCalls(shell.user_global_ns, returned)
        shell.ast_transformers.append(calls)
        shell.run_cell(cell, store_history=True)
        shell.ast_transformers.remove(calls)
        calls.stop()
        return found

    return called


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("f(1)", [("f", {"x": 1, "y": 2})]),
        ("a = f(2)\nb = g(f(3))", [("g", {"x": 4, "z": 5})]),
        ("print(g(2))", [("g", {"x": 2, "z": 3})]),
        ("for i in range(3): f(i)\ng(1);", [("g", {"x": 1, "z": 2})]),
        ("big(4)\nf(1)", [("big", {"n": 4, "x": "8"})]),
        (
            "f(1)\nbig(5)\nbig(6)\nf(1)",
            [("big", {"n": 5, "x": "32"}), ("big", {"n": 6, "x": "128"})],
        ),
        ("with torch.no_grad():\n    big(7)\n    x = 1\nx = 2", [("big", {"n": 7, "x": "512"})]),
        ("with contextlib.suppress(ValueError): f(1)\nx = 1", []),
        ("x = 1", []),
        ("[f(1) for _ in range(2)]", []),
        ("await h(1)", []),
        ("f(1/0)", []),
        ("torch.ones(1)", []),
        ("this is no code", []),
        ("", []),
    ],
)
def test_the_functions_that_a_cell_calls(called, cell, found, capsys):
    told = called(cell)
    for _, variables in told:
        if "n" in variables:
            variables["x"] = str(variables["x"].numel() // 1024)
    assert told == found
    assert sys.getprofile() is None


def test_a_method_is_a_function(called):
    assert called("A().m()")[0][1]["inside"] == 1


def test_a_profiler_of_the_users_is_left_alone(called):
    seen = []
    sys.setprofile(lambda *_: seen.append(1))
    try:
        mine = sys.getprofile()
        assert called("f(1)") == []
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert seen


def test_the_function_that_made_the_peak_is_told_of(shell, session):
    session("%%memtrace\ntrain(model, 6)\nlast = f(1)\nother = torch.ones(1024, device='cuda')")
    tips = loaded_tracer(shell).last.report().findings
    assert [tip.title.partition(" by ")[0] for tip in tips] == ["In train(): `kept` grows"]
    trace = loaded_tracer(shell).last.session.devices[0]
    assert trace.before_return.event < trace.before_return.freed < len(trace.events)


def test_what_fails_behind_a_function_is_told_of_the_failure(shell, session):
    shell.run_cell("def more(): return torch.ones(1 << 30, device='cuda')")
    session("%%memtrace\ntrain(model, 6)\nlost = [more() for _ in range(99)]")
    trace = loaded_tracer(shell).last
    assert ledger_before_return(CardLedger(trace.session)) is None
    assert trace.report().ooms


def test_an_error_that_is_caught_behind_a_function_is_explained(shell, session):
    shell.run_cell("def more(): return torch.ones(1 << 40, device='cuda')")
    caught = "try: more()\nexcept torch.OutOfMemoryError: pass"
    session(f"%%memtrace\ntrain(model, 6)\n{caught}")
    trace = loaded_tracer(shell).last
    assert ledger_before_return(CardLedger(trace.session)) is not None
    assert len(trace.report().ooms) == 1


def test_an_interrupt_behind_a_function_ends_the_cell(shell, monkeypatch):
    shell.user_ns["ran_on"] = False

    def interrupted(self, call):
        call.frame = None
        _thread.interrupt_main()

    monkeypatch.setattr(Recorder, "record_before_return", interrupted)
    result = shell.run_cell("%%memtrace\ntrain(model, 2)\nran_on = True\nx = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert not shell.user_ns["ran_on"]


def test_the_time_of_the_look_is_none_of_the_programs(shell, monkeypatch):
    look = Recorder._before_return

    def slow(self, function):
        time.sleep(2)
        return look(self, function)

    monkeypatch.setattr(Recorder, "_before_return", slow)
    shell.run_cell("%%memtrace\ntrain(model, 2)\nx = torch.ones(1024, device='cuda')\nf(1)")
    session = loaded_tracer(shell).last.session
    cell, trace = session.spans[0], session.devices[0]
    assert cell.t1_ns - cell.t0_ns < 1_500_000_000
    for table in (trace.events, trace.counter_samples, trace.samples):
        assert (np.diff(table.t_ns) >= 0).all()
        assert table.t_ns[-1] - cell.t0_ns < 1_500_000_000


def test_a_fault_behind_a_function_costs_its_names_only(shell, monkeypatch):
    def broken(self, function):
        raise RuntimeError

    monkeypatch.setattr(Recorder, "_before_return", broken)
    result = shell.run_cell("%%memtrace\ntrain(model, 2)\nran_on = True")
    assert result.success
    trace = loaded_tracer(shell).last
    assert any("the variables of a function" in note for note in trace.session.notes)
    assert trace.session.devices[0].before_return is None


def test_a_traceback_shows_no_line_of_nbmem(shell, capsys):
    shell.run_cell("%%memtrace\ndef fail():\n    raise ValueError('mine')\nx = 1\nfail()")
    shown = capsys.readouterr().out
    assert "ValueError" in shown
    assert "nbmem" not in shown.partition("ValueError: mine")[0]


@pytest.mark.parametrize("interactivity", ["all", "last_expr_or_assign", "none", "last"])
def test_nothing_more_is_displayed(shell, interactivity, capsys):
    shell.ast_node_interactivity = interactivity
    try:
        cell = "f(1)\nf(2)\nx = f(3)\nf(4)"
        shell.run_cell(cell, store_history=True)
        expected = re.sub(r"Out\[\d+\]", "", capsys.readouterr().out)
        calls = FunctionCalls(shell.user_global_ns, lambda call: None)
        shell.ast_transformers.append(calls)
        shell.run_cell(cell, store_history=True)
        shell.ast_transformers.remove(calls)
        calls.stop()
        assert re.sub(r"Out\[\d+\]", "", capsys.readouterr().out) == expected
    finally:
        shell.ast_node_interactivity = "last_expr"
