"""Explorer data equals the report to the byte and stays small."""

import json

import numpy as np
import pytest

from nbmem.core.session.categories import LIVE, Category
from nbmem.core.session.cell_delta import CellDelta
from nbmem.report.analysis import build_report
from nbmem.views.explorer.data import explorer_data
from nbmem.views.explorer.holding_names import parts_of
from nbmem.views.explorer.output import packed, unpacked
from tests.recorded_runs import load, session_of
from tests.views import sample_reports as sample

LARGEST_OUTPUT = 96 * 1024
"""Characters that a report may add to a saved notebook."""


@pytest.fixture(scope="module", params=["gpt2_b4s512_adamw", "cudagraph_mlp_b512_sgd"])
def run(request):
    report = build_report(session_of(load(request.param)))
    return report, unpacked(packed(explorer_data(report)))


def column(found, category, count):
    for index, steps in found:
        if index == category:
            return np.cumsum(steps)
    return np.zeros(count, np.int64)


def test_every_moment_holds_what_the_ledger_says(run):
    report, data = run
    moments, curves = data["moments"], report.timeline
    assert (np.cumsum(moments["event"]) == curves.event).all()
    assert (np.cumsum(moments["t"]) == curves.t_ns).all()
    for category in Category:
        if category is not Category.FREE:
            counts = column(moments["held"], category, len(curves.event))
            assert (counts == curves.held[:, category]).all()
    row = int(np.searchsorted(curves.event, data["peak"]["event"]))
    assert tuple(curves.held[row]) == report.ledger_at_peak.held
    assert data["peak"]["allocated"] == report.ledger_at_peak.allocated


def test_tensors_and_the_smaller_ones_add_up_to_the_ledger_at_every_moment(run):
    _, data = run
    moments, lives = data["moments"], data["lives"]
    events = np.cumsum(moments["event"])
    born, freed = np.cumsum(lives["born"]), np.array(lives["freed"])
    size, kind = np.array(lives["requested"]), np.array(lives["category"])
    for category in LIVE:
        held = column(moments["held"], category, len(events))
        live = column(moments["live"], category, len(events))
        for row, event in enumerate(events):
            counts = (born < event) & (freed >= event) & (kind == category)
            smaller = live[row] - counts.sum()
            assert smaller >= 0
            assert held[row] - size[counts].sum() >= 0
            assert smaller or held[row] == size[counts].sum()


@pytest.mark.parametrize("name", sample.ALL)
def test_any_report_is_small_and_survives_sorted_keys(name):
    cells = [
        CellDelta(
            label="x" * 300,
            execution_count=i,
            allocated_before=0,
            allocated_after=i << 20,
            reserved_before=0,
            reserved_after=i << 21,
            peak=None,
            process=None,
            duration_ns=i,
            error=None,
        )
        for i in range(1000)
    ]
    data = explorer_data(sample.ALL[name](), cells)
    assert len(packed(data)) < LARGEST_OUTPUT
    assert json.loads(json.dumps(data, sort_keys=True)) == json.loads(json.dumps(data))


def test_a_long_run_is_small(run):
    assert len(packed(run[1])) < LARGEST_OUTPUT / 2


@pytest.mark.parametrize(
    ("name", "group", "shape", "dtype"),
    [
        ("model.conv1.weight (64, 3, 7, 7) float32", "model.conv1", "(64, 3, 7, 7)", "float32"),
        ("model.0.weight.grad", "model.0", None, None),
        ("optimizer.state[0]['exp_avg'] (4,) float32", "optimizer", "(4,)", "float32"),
        ("losses[3] () float32", "losses", "()", "float32"),
        ("x (2, 2) bfloat16", "x", "(2, 2)", "bfloat16"),
        ("kept[0] (2, 512) float32, a view", "kept", "(2, 512)", "float32"),
        ("input args[0] (8, 4) int64", "input args", "(8, 4)", "int64"),
    ],
)
def test_a_name_is_taken_apart(name, group, shape, dtype):
    from nbmem.report.exploration import Lifetime

    life = Lifetime(
        number=0,
        born=0,
        freed=1,
        name=name,
        category=Category.WEIGHTS,
        requested=1,
        block=512,
        born_in=None,
        line=None,
    )
    parts = parts_of(life)
    assert (parts.group, parts.shape, parts.dtype) == (group, shape, dtype)
    assert parts.name.endswith(", a view") == name.endswith(", a view")
