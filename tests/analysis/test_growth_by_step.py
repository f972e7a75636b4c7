"""What grows, step by step: bytes at each end, and the line that adds to it."""

import pytest

import nbmem
from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.report.analysis.growth_by_step import MAX_STEPS
from nbmem.report.analysis.source_lines import adding_lines
from nbmem.views.exports.report import report_json
from nbmem.views.growth import growth_table, outlook, sentence

CODE = """\
%%memtrace --stacks
for step in range(3):
    preds.append(out)
    history["out"].append(out)
    cache[step] = out
    total = total + loss
    running += loss
    self.seen.extend([out])
    out = model(out)
    !nvidia-smi
""".splitlines()
EVALUATE = """\
import torch
net = torch.nn.Linear(512, 1024).cuda()
preds = []
with torch.no_grad():
    for _ in range({steps}):
        out = net(torch.ones(1024, 512, device="cuda"))
        preds.append({kept})
"""


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("preds", [3]),
        ("history['out']", [4]),
        ("cache", [5]),
        ("total", [6]),
        ("running", [7]),
        ("self.seen", [8]),
        ("loss", []),
        ("not code", []),
    ],
)
def test_the_statement_that_adds_to_a_place_is_found(place, lines):
    assert adding_lines(CODE, [place]) == lines


def test_code_that_cannot_be_parsed_has_no_such_line():
    assert adding_lines(["for step in", "preds.append(1)"], ["preds"]) == []


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    """Return report(kept, steps): an evaluation that keeps something of each step."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("grown")

    def report(kept, steps=6):
        path = folder / "evaluate.py"
        path.write_text(EVALUATE.format(kept=kept, steps=steps))
        names = {}
        code = compile(path.read_text(), str(path), "exec")
        with virtual.activated("T4"):
            with nbmem.trace("evaluate", stacks=True, namespace=names) as trace:
                exec(code, names)
            return trace.report()

    return report


@pytest.fixture(scope="module")
def grown(evaluate):
    return evaluate("out")


def test_each_steps_end_has_the_bytes_of_the_holder(grown):
    growth = grown.growth
    (preds,) = growth.holders
    assert (preds.name, preds.slope, preds.iterations) == ("`preds`", 4 * MIB, 6)
    assert preds.held == tuple(4 * MIB * (step + 1) for step in range(6))
    assert growth.steps == tuple(range(6))
    # The input of a step lives on as the next one begins: `out` is the last item of the list.
    assert growth.allocated[-1] == grown.ledger_at_end.allocated
    assert (preds.line, preds.number, preds.code) == ("evaluate.py:7", 7, "preds.append(out)")


def test_text_page_and_json_have_one_computation(grown):
    from nbmem.views.explorer.data import explorer_data

    told = "`preds` grows by 4.0 MiB a step: `preds.append(out)`, evaluate.py:7"
    (preds,) = grown.growth.holders
    assert sentence(preds) == told
    data = explorer_data(grown)["growth"]
    assert [one["words"] for one in data["holders"]] == [told]
    assert data["holders"][0]["held"] == list(preds.held)
    written = report_json(grown)["growth"]
    assert written["holders"][0]["bytes_a_step"] == 4 * MIB
    assert written["events"] == data["events"]
    assert "+4.0 MiB       4.0 MiB      24.0 MiB  evaluate.py:7: preds.append(out)" in growth_table(
        grown, 100
    )
    free = grown.ledger_at_end
    left = (free.total_bytes - free.used + free.reserved - free.active) // (4 * MIB)
    assert grown.growth.left == left
    assert (
        outlook(grown.growth) == f"At this rate the card is full after about {left:,} more steps."
    )


def test_a_long_loop_shows_some_steps_and_its_last(evaluate):
    growth = evaluate("out", 150).growth
    assert len(growth.steps) == MAX_STEPS
    assert growth.steps[-1] == 149
    assert growth.holders[0].held[-1] == 150 * 4 * MIB


def test_a_healthy_loop_has_no_growth(evaluate):
    healthy = evaluate("out.mean()")  # 512 bytes a step
    assert healthy.growth is None
    assert growth_table(healthy, 100) == ""
    assert report_json(healthy)["growth"] is None
