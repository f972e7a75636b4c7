"""`%nbmem try`: a tip's change is made in the cell's source, run, and compared."""

import pytest

pytest.importorskip("torch")

from nbmem.core.errors import UsageError
from nbmem.core.units import MIB
from nbmem.estimates.card_choice import card_for
from nbmem.estimates.programs import programs
from nbmem.estimates.programs.assignments import made_anew
from nbmem.estimates.questions.single_remedy import change_of, try_change
from nbmem.estimates.runs.probe_run import probe
from nbmem.report.exploration import GrowingHolder, StepGrowth
from nbmem.report.model import Finding

KEEPS = """\
import torch
seen = []
for step in range(8):
    x = torch.ones(64 * 2**20, dtype=torch.uint8, device="cuda")
    seen.append(x)
"""


def finding(rule, title="", code=None):
    return Finding(rule=rule, title=title, evidence="", low=0, high=0, ground="exact", code=code)


def growing(number, category=10):
    holder = GrowingHolder(
        name="`seen`", category=category, slope=1, iterations=8, held=(1,), number=number
    )
    return StepGrowth(steps=(0,), events=(1,), allocated=(1,), holders=(holder,))


def tried(source, what, growth=None, card="T4"):
    program = programs.cell(source, {})
    change = change_of(what, growth, program, lambda name: programs.bind_variable(program, name))
    return change, try_change(what, change, card_for(card), 0, probe, lambda _: None)


def test_the_line_that_adds_keeps_it_on_the_cpu_and_both_runs_are_exact():
    what = finding("grows_each_step", "`seen` grows by 64.0 MiB with every step")
    change, plan = tried(KEEPS, what, growing(5))
    assert change.after.source == KEEPS.replace("append(x)", "append(x.detach().cpu())")
    before, after = plan.options
    assert before.probe.allocated == 8 * 64 * MIB
    assert after.probe.allocated == 2 * 64 * MIB  # the next one is made beside the last
    assert after.saved == 6 * 64 * MIB
    assert after.diff.splitlines()[-1] == "+    seen.append(x.detach().cpu())"
    assert plan.sentences[0].endswith("384.0 MiB less; it fits Tesla T4.")


def test_the_one_number_that_is_the_batch_is_made_smaller():
    source = 'import torch\nx = torch.ones(4096, 2**20, device="cuda")'
    what = finding("batch_size", "Take a batch of about 64, not 4096", "batch_size = 64   # by")
    change, plan = tried(source, what)
    assert "torch.ones(64, 2**20" in change.after.source
    before, after = plan.options
    assert (before.probe.fits, before.probe.failure.kind) == (False, "memory")
    assert after.probe.allocated == 64 * 4 * MIB


@pytest.mark.parametrize(
    ("what", "growth", "source", "why"),
    [
        (finding("two_models"), None, KEEPS, "Cannot try two_models: its change has no one place"),
        (finding("graph_kept", "`seen`"), growing(3), KEEPS, "Keep `x.detach()` where it is added"),
        (
            finding("batch_size", "a batch of 2, not 4", "batch_size = 2"),
            None,
            "x = 4 + 4",
            "not clear what the batch is",
        ),
    ],
)
def test_a_change_without_one_place_is_refused(what, growth, source, why):
    with pytest.raises(UsageError, match="Cannot try") as refused:
        tried(source, what, growth)
    assert why in str(refused.value)


def test_a_change_under_which_the_cell_does_not_end_says_so():
    source = f"{KEEPS}seen[0].resize_(3)\nassert seen[0].is_cuda"
    what = finding("grows_each_step", "`seen` grows")
    _, plan = tried(source, what, growing(5))
    before, after = plan.options
    assert before.probe.ran
    assert after.probe is None
    assert "It did not run to its end: AssertionError" in plan.sentences[0]


@pytest.mark.parametrize(
    ("source", "anew"),
    [
        ("kept = []\nkept.append(1)", {"kept"}),
        ("kept = kept + [1]", set()),
        ("kept += [1]", set()),
        ("if now:\n    kept = []\nkept.append(1)", set()),
        ("for x in data:\n    y = x\nz = y", {"x", "y", "z"}),
        ("with lock as held:\n    a = 1", {"held", "a"}),
        ("f = [kept for kept in rows]", {"f"}),
        ("def f():\n    return kept\nkept = []", set()),
        ("kept: list = []", {"kept"}),
        ("for", set()),
    ],
)
def test_what_a_cell_assigns_before_it_reads_it_needs_no_copy(source, anew):
    assert made_anew(source) == anew


CELL = """\
%%memtrace --stacks
net = torch.nn.Linear(1024, 65536).cuda()
preds = []
with torch.no_grad():
    for i in range(80):
        out = net(torch.ones(1024, 1024, device="cuda"))
        preds.append(out)
"""


def test_in_a_notebook_a_failed_cell_is_tried_from_where_it_began(run):
    assert "no cell has been traced" in run("%nbmem try").err
    run("%nbmem gpu T4\nimport torch")
    assert "Ran out of memory" in run(CELL).out
    assert "Cannot try 'nothing': the last report has no such tip." in run("%nbmem try nothing").err
    output = run("%nbmem try grows_each_step").out
    assert "with the change" in output
    assert "+        preds.append(out.detach().cpu())" in output
    assert "it fits Tesla T4." in output
    assert len(run.names["preds"]) < 80  # nothing here has changed
