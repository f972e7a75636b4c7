"""Python blocks of the README and the site run on a virtual card.

A page's blocks run one after the other in one shell, which has what a reader is taken to have: a
model that trains. `<!-- not run: reason -->` stands above a block that is compiled and no more.
"""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from nbmem import virtual
from tests.ipython_shell import shell_on_virtual_card

ROOT = Path(__file__).parents[2]
WRITTEN = ("tips.md",)
"""By a tool: its programs are run by tests/tips."""
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.name not in WRITTEN and re.search(r"^```i?python$", path.read_text(), re.MULTILINE)
]
TAKEN_FOR_GRANTED = """
import nbmem
from torch import nn

model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
images, labels = torch.randn(512, 2048, device="cuda"), torch.zeros(512, dtype=torch.long)
history, best = [], {name: weight.clone() for name, weight in model.state_dict().items()}


def train(batch=8, steps=2):
    for step in range(steps):
        model(torch.randn(batch, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate():
    with torch.no_grad():
        model(images)
"""
PIECE = re.compile(
    r"(?:<!-- not run: (?P<reason>.+?) -->\n)?```i?python\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with shell_on_virtual_card(monkeypatch) as shell:
        shell.run_cell(TAKEN_FOR_GRANTED, store_history=True).raise_error()
        for piece in PIECE.finditer(page.read_text()):
            code = piece["code"]
            if piece["reason"]:
                compile(shell.transform_cell(code), page.name, "exec")
                continue
            done = shell.run_cell(code, store_history=True)
            assert done.success, f"{code}\n{done.error_in_exec or done.error_before_exec}"
            output = capsys.readouterr().out
            assert "nbmem: " not in output, output  # a sentence that refuses
    assert virtual.active() is None


def test_there_are_pages_with_code():
    assert len(PAGES) > 6
