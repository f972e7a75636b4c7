"""The variables of a function that the last function of a script calls."""

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
