"""`%nbmem top`: all live bytes of the card with their holders."""

import numpy as np
import pytest
import torch

from nbmem.allocator.cublas import WORKSPACE
from nbmem.api.live_tensors import live_now
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.session.categories import Category
from nbmem.report.ledger.cublas_workspaces import unheld_workspaces
from nbmem.views.live_tensors import render_top_html
from tests.ipython_shell import shell_on_virtual_card

C = Category


@pytest.fixture
def top(capsys, monkeypatch):
    with shell_on_virtual_card(monkeypatch) as shell:

        def do(code, argument=""):
            shell.run_cell(code, store_history=True)
            capsys.readouterr()
            shell.run_cell(f"%nbmem top {argument}", store_history=True)
            output = capsys.readouterr()
            return shell, output.out + output.err

        yield do


TRAINING = """
model = torch.nn.Linear(512, 256, bias=False).cuda()
optimizer = torch.optim.Adam(model.parameters())
x = torch.zeros(3, 512, device='cuda')
model(x).sum().backward(); optimizer.step()
losses = [torch.relu(model(x)).sum()]
state = model.state_dict()
"""


def test_each_storage_is_one_row_with_its_category_and_holders(top):
    shell, _ = top(TRAINING)
    rows = live_now(shell.user_ns)[0]
    assert sum(row.block for row in rows) == torch.cuda.memory_allocated()
    named = {row.name: row for row in rows}
    size = 512 * 256 * 4
    for name, category in (
        ("model.weight", C.WEIGHTS),
        ("model.weight.grad", C.GRADIENTS),
        ("model.weight: exp_avg", C.OPTIMIZER_STATE),
    ):
        assert (named[name].category, named[name].requested) == (category, size)
    assert named["model.weight"].form == "(256, 512) float32"
    roots = {way.root for way in named["model.weight"].holders}
    assert roots == {"model", "optimizer", "losses", "state"}
    assert named["x"].category is C.USER_TENSORS
    if why_unreadable() is None:
        assert named["the graph of losses[0]"].category is C.ACTIVATIONS
    assert named["cuBLAS workspace"].category is C.WORKSPACE  # no Python object has it
    assert C.UNKNOWN not in {row.category for row in rows}


def test_more_of_a_workspaces_size_than_threads_are_not_told_apart():
    size = np.array([WORKSPACE, WORKSPACE, 512, WORKSPACE, WORKSPACE, WORKSPACE])
    stream = np.array([0, 0, 0, 7, 7, 7])
    assert unheld_workspaces(size, stream).tolist() == [True, True, *[False] * 4]


def test_the_table(top):
    _, output = top(
        "x = torch.zeros(3 << 18, device='cuda'); y = {'view': x[1:]}; small = x[:9] + 1"
    )
    assert output == (
        "Card 0: 3.0 MiB requested of 3.0 MiB allocated now\n"
        "  3.0 MiB  user tensors  x (786432,) float32\n"
        "                         also held by y['view']\n"
        "     36 B  user tensors  small (9,) float32\n"
    )
    _, output = top("", "1")
    assert "small" not in output
    _, output = top("", "many")
    assert "write how many, as in `%nbmem top 20`." in output


def test_an_empty_card(top):
    _, output = top("1")
    assert output == "Nothing lives on a card: torch has no memory allocated there.\n"


def test_markup_in_a_name_stays_text(top):
    shell, _ = top("names = {'<img src=x>': torch.zeros(9, device='cuda')}")
    html = render_top_html(live_now(shell.user_ns)[0], 5, "Card 0")
    assert "<img" not in html
    assert "names[&#x27;&lt;img src=x&gt;&#x27;]" in html
