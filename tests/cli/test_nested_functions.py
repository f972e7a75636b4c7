"""The variables of a function that the last function of a script calls."""

import json

import pytest

pytest.importorskip("torch", reason="there is no memory without torch")

import nbmem
from nbmem.report.analysis.before_return import ledger_before_return
from nbmem.report.ledger.card_ledger import CardLedger
from tests.forked_command import run_forked

SCRIPT = """
import torch
def train(args):
    kept = []
    for step in range(8):
        kept.append(torch.ones(32, 1024, 256, device="cuda"))
        {line}
def main():
    args = 1
    train(args)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("line", ["pass", "step > 6 and 1 / 0"])
def test_a_script_that_ends_with_such_a_function(tmp_path, line):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(line=line))
    saved = tmp_path / "run.nbmem"
    ran = run_forked(
        ["run", str(path), "--gpu", "T4", "--save", str(saved), "--quiet"], tmp_path, {}, 90
    )
    assert ran.returncode == (line != "pass"), ran.stderr
    ledger = CardLedger(nbmem.open(saved).session)
    shown = ledger if line != "pass" else ledger_before_return(ledger)
    assert {held.name for held in shown.storages} == {f"kept[{i}]" for i in range(8)}


PIPELINE = """
import torch
from torch import nn

class Encoder:
    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def encode(self, x):
        return self.model(x)

class Pipeline:
    def __init__(self):
        self.denoiser = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)]).cuda()
        self.encoder = Encoder(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(32)]).cuda())

    def generate(self, x):
        with torch.no_grad():
            for _ in range(4):
                x = self.denoiser(x)
        return x

    def run(self, batch):
        batch["features"] = self.encoder.encode(batch["text"])
        return self.generate(batch["features"]).cpu()

def draw(texts):
    pipeline = Pipeline()
    for text in range(texts):
        pipeline.run({"text": torch.ones(16384, 2048, device="cuda")})

draw(3)
"""


def test_a_model_that_a_later_call_uses_is_needed(tmp_path):
    """A look at the first of three calls does not see that the next ones use it."""
    path, report = tmp_path / "script.py", tmp_path / "report.json"
    path.write_text(PIPELINE)
    ran = run_forked(
        ["run", str(path), "--gpu", "T4", "--json", str(report), "--quiet"], tmp_path, {}, 90
    )
    assert ran.returncode == 0, ran.stderr
    findings = json.loads(report.read_text())["findings"]
    assert [one["rule"] for one in findings] == ["unused_memory"]  # what `batch` keeps
