"""torch.compile as a remedy, with the bytes of its line."""

import dataclasses

import pytest
import torch
from torch._functorch import config as functorch

from nbmem import virtual
from nbmem.api import tracing
from nbmem.core import units
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import fit, planner
from nbmem.estimates.remedies import compiled as ways
from nbmem.estimates.remedies.activations import Autocast
from nbmem.estimates.remedies.compiled import ALREADY, ActivationBudget, Compile
from nbmem.estimates.remedies.optimizers import PlainSGD
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.report.estimate_results import Failure
from nbmem.virtual import warnings
from nbmem.virtual.patches.compiled import compiler

planned = pytest.mark.skipif(not compiler.PLANNED, reason="this release's compiler is unknown")
N, WIDE = 1 << 14, 512
SOURCE = f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear({WIDE}, {WIDE}, bias=False)
        self.second = nn.Linear({WIDE}, {WIDE}, bias=False)
    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = torch.tanh(torch.sin(x) * 2)
        return self.second(x)

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters())
for step in range(2):
    loss = net(torch.randn({N}, {WIDE}, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ADAM = SOURCE.replace("SGD(", "Adam(")


def probe_cell(source, *keys):
    return probe(programs.cell(source, {}), Request(card=virtual.find_card("T4"), remedies=keys))


def held_as_a_traced_cell(source):
    with virtual.activated((virtual.find_card("T4"),), defer=True):
        trace = tracing.trace("pasted")
        trace.start()
        try:
            exec(compile(source, "<pasted>", "exec"), {})
        finally:
            trace.stop(None)
        return trace.report().peak.allocated


@planned
@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "line"),
    [("compile", "net.compile()"), ("compile_graphs", 'net.compile(mode="reduce-overhead")')],
)
def test_the_line_holds_what_the_run_says_and_another_run_is_eager_again(key, line):
    eager = probe_cell(SOURCE).probe
    reply = probe_cell(SOURCE, key)
    assert reply.refused is None
    assert reply.code == line
    assert f"net = Net().cuda()\n{line}\noptimizer" in reply.changed
    assert reply.probe.allocated < eager.allocated
    assert held_as_a_traced_cell(reply.changed) == reply.probe.allocated
    assert probe_cell(SOURCE).probe.allocated == eager.allocated


@pytest.fixture
def quick(monkeypatch):
    """Provide a compiler that takes no time, beside two other remedies."""

    def compiled_at_once(remedy, model):
        del model
        remedy.applied += 1

    monkeypatch.setattr(Compile, "_compile", compiled_at_once)
    monkeypatch.setattr(planner, "REMEDIES", (Autocast, PlainSGD, Compile, ways.CompileGraphs))


def test_compile_runs_after_the_pairs_in_none_of_them_and_only_if_needed(here, quick):
    messages = []
    found = here.plan(programs.cell(ADAM, {}), "T4", every=True, tell=messages.append)
    titles = [line.partition(":")[0] for line in messages]
    assert titles[0] == "as it is"
    assert set(titles[1:3]) == {"autocast", "plain SGD"}
    assert "+" in titles[3]
    assert titles[4:] == ["torch.compile", "torch.compile, reduce-overhead"]
    need = {option.key: option.probe.need for option in found.options}["autocast"]
    found = here.plan(programs.cell(ADAM, {}), "T4", target=need)
    rows = {option.key: option for option in found.options}
    assert rows["autocast"].cheapest
    assert rows["compile"].probe is None
    assert rows["compile"].foreseen


COMPILED = SOURCE.replace("Net().cuda()", "torch.compile(Net().cuda())")


@planned
def test_a_program_that_compiles_is_planned_behind_its_eager_run(here):
    messages, seen = [], []
    found = here.plan(
        programs.cell(COMPILED, {}),
        "T4",
        tell=messages.append,
        show=lambda answer, _left: seen.append(answer.options[0].probe.allocated),
    )
    assert [line.partition(":")[0] for line in messages] == ["as it is", "as it is, compiled"]
    eager, base = probe_cell(SOURCE).probe, found.options[0].probe
    assert seen == [eager.allocated]
    assert base.allocated == held_as_a_traced_cell(COMPILED) < eager.allocated
    assert any(units.format_bytes(eager.need) in sentence for sentence in found.sentences)
    assert {o.key: o.why_not for o in found.options}["compile"] == ALREADY


@planned
@pytest.mark.long
def test_remedies_of_a_program_that_compiles_hold_what_their_lines_do():
    source = COMPILED.replace("loss = net(", "y = net(").replace(").sum()", ")\n    loss = y.sum()")
    for key in ("offload", "sgd"):
        request = Request(card=virtual.find_card("T4"), remedies=(key,), compiled=True)
        reply = probe(programs.cell(source.replace("SGD(", "Adam("), {}), request)
        assert reply.refused is None
        assert held_as_a_traced_cell(reply.changed) == reply.probe.allocated


@planned
def test_a_fit_searches_again_with_what_is_compiled_and_says_what_eager_mode_would_do(here):
    source = COMPILED.replace(f"randn({N},", "randn(rows,").replace(
        "for step", "rows = 8192\nfor step"
    )
    seen = []
    found = here.fit(
        programs.cell(source, {}, vary="rows"),
        "T4",
        between=(8192, 16384),
        step=8192,
        show=lambda answer, _left: seen.append(answer.sentences),
    )
    assert any(warnings.COMPILE_LATER in sentences for sentences in seen)
    assert warnings.COMPILE_LATER not in found.sentences
    assert any("they run eagerly, rows = 16384 fits" in sentence for sentence in found.sentences)
    request = Request(card=virtual.find_card("T4"), margin=found.card.margin, value=16384)
    eager = probe(programs.cell(source, {}, vary="rows"), request).probe
    planned_one = next(p for p in found.probes if p.value == 16384)
    assert planned_one.allocated < eager.allocated


DEEP = """
import torch
from torch import nn
layers = lambda: (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
net = nn.Sequential(*layers(), *layers(), *layers())
net = torch.compile(net.cuda())
for step in range(2):
    net(torch.randn(16384, 256, device="cuda")).sum().backward()
"""


@planned
@pytest.mark.long
def test_a_budget_of_activations_holds_what_its_lines_do_and_goes_with_its_run():
    request = Request(card=virtual.find_card("T4"), compiled=True)
    base = probe(programs.cell(DEEP, {}), request).probe
    reply = probe(programs.cell(DEEP, {}), dataclasses.replace(request, remedies=("budget",)))
    assert reply.refused is None
    assert reply.changed.strip() == f"{reply.code}\n{DEEP.strip()}"
    assert reply.probe.allocated < 0.9 * base.allocated
    budgeted = functorch.activation_memory_budget
    try:
        assert held_as_a_traced_cell(reply.changed) == reply.probe.allocated
    finally:
        functorch.activation_memory_budget = budgeted
    assert budgeted == 1


def test_a_program_that_compiles_nothing_gets_no_budget(here, monkeypatch):
    monkeypatch.setattr(planner, "REMEDIES", (ActivationBudget,))
    found = here.plan(programs.cell(SOURCE, {}), "T4", every=True)
    assert {o.key: o.why_not for o in found.options}["budget"] == "The program compiles nothing."


def test_a_program_that_fails_planned_keeps_its_eager_answer(here, monkeypatch):
    true_probe = fit.probe

    def failing(program, request):
        reply = true_probe(program, dataclasses.replace(request, compiled=False))
        if not request.compiled:
            return reply
        failure = Failure(kind="other", text="RuntimeError: no such kernel")
        return dataclasses.replace(reply, probe=dataclasses.replace(reply.probe, failure=failure))

    monkeypatch.setattr(fit, "probe", failing)
    source = COMPILED.replace(f"randn({N},", "randn(rows,").replace(
        "for step", "rows = 64\nfor step"
    )
    program = programs.cell(source, {}, vary="rows")
    why = "Compiled functions ran eagerly, for planned the program fails: RuntimeError"
    for found in (here.fit(program, "T4", between=(64, 128), step=64), here.plan(program, "T4")):
        assert any(sentence.startswith(why) for sentence in found.sentences)
    assert found.options[0].probe.ran


def test_an_older_torch_gets_a_sentence(here, monkeypatch):
    monkeypatch.setattr(compiler, "PLANNED", False)
    monkeypatch.setattr(torch, "__version__", "2.10.0+cpu")
    found = here.plan(programs.cell(SOURCE, {}), "T4")
    assert {o.key: o.why_not for o in found.options}["compile"] == (
        "torch.compile is planned here from torch 2.11 on; this is 2.10.0."
    )


def test_what_could_not_be_planned_is_no_figure_of_its(here):
    remedy = Compile()
    remedy.applied = 1
    with virtual.activated((virtual.find_card("T4"),)) as gpu:
        assert remedy.unapplied is None
        note = warnings.unplanned("Net.forward", "an operator that nobody knows")
        with pytest.warns(warnings.NbmemWarning):
            gpu.note(note)
        assert remedy.unapplied == note
