"""fit in a notebook, in a terminal and from Python, and plan: one number."""

import json
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import estimates
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import planner
from nbmem.estimates.remedies.batches import Expandable
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.frontends.cli import main
from tests.estimate.small_cards import small_card

CONVOLUTIONS = """
import torch
from torch import nn
batch = 300
layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3)]
layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    loss = model(torch.randn(batch, 3, 64, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LINEAR = """
import torch
from torch import nn
batch = 30000
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
for step in range(2):
    model(torch.randn(batch, 512, device="cuda")).sum().backward()
"""
ATTENTION = """
import torch
batch = 9000
q = torch.randn(4, 64, 32, device="cuda", requires_grad=True)
for step in range(2):
    k = torch.randn(4, batch, 32, device="cuda")
    pairs = (q @ k.mT).softmax(-1)
    loss = (k @ k.mT).softmax(-1).sum() + pairs.sum()
    loss.backward()
"""
PROGRAMS = {
    "convolutions": (CONVOLUTIONS, 600),
    "linear": (LINEAR, 400),
    "length": (ATTENTION, 320),
}


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("convolutions", "length")]


@pytest.fixture(params=["linear", *LONG])
def asked(request, monkeypatch, tmp_path):
    """Return a program's source and file, and a small card for questions."""
    source, mib = PROGRAMS[request.param]
    card = small_card(mib)
    monkeypatch.setattr("nbmem.estimates.world_choice.world_for", lambda *_question: (card, None))
    monkeypatch.setattr("nbmem.estimates.answers.FitAnswer.__str__", lambda _answer: "")
    file = tmp_path / "program.py"
    file.write_text(source)
    return source, file, card


def by_notebook(source, folder):
    """Return the answer of `%%nbmem fit` above a cell."""
    InteractiveShell.clear_instance()
    before, shell = sys.modules["__main__"], InteractiveShell.instance()
    nbmem.load_ipython_extension(shell)
    try:
        shell.run_cell(f"%%nbmem fit batch --json '{folder}/notebook.json'\n{source}")
    finally:
        nbmem.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = before
    return json.loads((folder / "notebook.json").read_text())


def by_command(file, *words):
    """Return the answer of a command that writes JSON."""
    target = file.parent / "command.json"
    assert main([words[0], str(file), *words[1:], "--json", str(target)]) == 0
    return json.loads(target.read_text())


def test_four_ways_to_ask_have_one_answer(asked, monkeypatch):
    source, file, card = asked
    first, _, rest = source.partition("batch = ")
    own, _, rest = rest.partition("\n")

    def call(batch):
        exec(first + rest, {"batch": batch})

    script = by_command(file, "fit", "--vary", "batch")
    notebook = by_notebook(source, file.parent)
    python = estimates.fit(call, card, start=int(own) // 2)
    monkeypatch.setattr(planner, "REMEDIES", (Expandable,))  # the others take long
    planned = by_command(file, "plan", "--batch", "batch")["options"][0]
    assert script["safe"] == notebook["safe"] == python.safe == planned["largest"]
    assert script["best"] == notebook["best"] == python.best >= python.safe


def verdicts(file, card, values, margin):
    """Return for each value whether it fits, each run."""
    program = programs.script(str(file), vary="batch")
    kept = int(card.total_bytes * margin)
    request = Request(card=card, margin=kept)
    with EstimateProcess(program) as apart:
        return {v: apart.call(probe, replace(request, value=v)).probe.fits for v in values}


def test_what_is_safe_is_and_what_is_largest_is(asked):
    _, file, card = asked
    found = estimates.fit(programs.script(str(file), vary="batch"), card, margin=0.05)
    below = range(found.safe - 5, found.safe + 1)
    for margin in (0.05, 0):
        assert all(verdicts(file, card, below, margin).values())
    above = verdicts(file, card, range(found.best, found.best + 6), 0.05)
    assert [value for value, fits in above.items() if fits] == [found.best]
