"""Autocast's copies of weights in an inference have their names and bytes."""

import pytest

pytest.importorskip("torch")

from nbmem.core.session.categories import Category
from nbmem.report.analysis import card_ledger_of
from tests.tips.measure import program_runner
from tests.tips.programs import MODEL

CODE = """
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
with torch.no_grad(), torch.autocast("cuda", torch.float16{options}):
    for _ in range({calls}):
        y = model(batch({rows}, 512))
"""


@pytest.fixture
def copies():
    """Provide copies(code): category and bytes of each copy, by its name."""
    with program_runner() as run:

        def found(code):
            ledger = card_ledger_of(run(code, before=MODEL)[0].session)
            names = {row: ledger.name(row) or "" for row in range(len(ledger.allocations))}
            return {
                name: (Category(ledger.category[row]), int(ledger.allocations.requested[row]))
                for row, name in names.items()
                if name.startswith("autocast's copy of ")
            }

        yield found


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("rows", [64, 1024])  # with 1,024 a result has the size of a weight
def test_each_copy_is_named_after_its_weight(copies, calls, rows):
    found = copies(CODE.format(options="", calls=calls, rows=rows))
    half = 512 * 1024 * 2
    assert found == {
        "autocast's copy of model.0.weight (1024, 512) float16": (Category.TEMPORARIES, half),
        "autocast's copy of model.0.bias (1024,) float16": (Category.TEMPORARIES, 2048),
        "autocast's copy of model.2.weight (512, 1024) float16": (Category.TEMPORARIES, half),
        "autocast's copy of model.2.bias (512,) float16": (Category.TEMPORARIES, 1024),
    }


@pytest.mark.parametrize(
    "code",
    [
        CODE.format(options=", enabled=False", calls=3, rows=1024),
        CODE.replace(".cuda()", ".cuda().half()").format(options="", calls=3, rows=1024),
        CODE.replace("torch.no_grad()", "torch.enable_grad()").format(
            options="", calls=3, rows=1024
        ),
    ],
)
def test_no_copy_is_named_where_there_is_none(copies, code):
    assert copies(code) == {}
