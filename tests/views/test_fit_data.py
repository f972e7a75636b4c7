"""Data of the chart on which a fit's value is dragged."""

import json
from dataclasses import replace

from nbmem.report.estimate_results import CardFigures, Fit, Part, Probe
from nbmem.views.fit import chart_data, render_interactive
from nbmem.views.mime_types import FIT_MIME

GIB = 1 << 30


def run(value, *, fits=True):
    return Probe(
        value=value,
        fits=fits,
        allocated=value * GIB,
        reserved=value * GIB,
        process=value * GIB + 1,
        wanted=value * GIB + 1,
        phase="forward",
        held={"activations": value * GIB},
    )


def line(name):
    return Part(name=name, fixed=0.0, each=float(GIB), square=0.0, residual=0.0)


FIT = Fit(
    title="train.py",
    variable="batch",
    card=CardFigures(name="T4", total=15 * GIB, margin=GIB, driver=0),
    safe=10,
    best=13,
    limit=14,
    low=1,
    high=None,
    step=1,
    probes=(run(4), run(8), run(14, fits=False)),
    total=line("allocated"),
    parts=(line("activations"),),
    sentences=("batch = 10 fits.",),
)


def test_the_chart_has_the_runs_the_formula_and_its_axis():
    data = chart_data(FIT)
    assert json.loads(json.dumps(data)) == data
    assert (data["safe"], data["best"], data["limit"], data["room"]) == (10, 13, 14, 14 * GIB)
    assert data["parts"][0]["key"] == "activations"
    assert data["runs"][2] == {
        "value": 14,
        "fits": False,
        "allocated": 14 * GIB,
        "process": 14 * GIB + 1,
        "held": {"activations": 14 * GIB},
    }
    assert data["chart"]["image"].startswith("data:image/svg+xml")
    assert data["chart"]["end"] == 14 * 1.05  # a little beyond the last value that ran
    runs, formula = data["tables"]
    assert runs[0].startswith("3 runs on a virtual T4")
    assert formula[1].startswith("peak allocated = 0 B + batch x 1.00 GiB")


def test_without_a_formula_there_is_nothing_to_drag():
    plain = replace(FIT, total=None, parts=())
    assert chart_data(plain) is None
    assert "<script" not in render_interactive(plain)
    assert FIT_MIME in render_interactive(FIT)
