"""JSON of fit, plan and layers: keys and sums."""

import json

from nbmem.report.estimate_results import (
    CardFigures,
    Failure,
    Fit,
    LayerRow,
    Layers,
    Option,
    Part,
    Plan,
    Probe,
)
from nbmem.views.exports.estimates import fit_json, layers_json, plan_json

CARD = CardFigures(name="L4", total=24 << 30, margin=1 << 29, driver=1 << 28)
RAN = Probe(
    value=8,
    fits=True,
    allocated=100,
    reserved=200,
    process=300,
    wanted=250,
    phase="backward",
    held={"weights": 60, "gradients": 40},
    seconds=1.5,
    notes=("n",),
)
DIED = Probe(
    value=16,
    fits=False,
    allocated=0,
    reserved=0,
    process=0,
    wanted=900,
    phase=None,
    failure=Failure(kind="memory", text="out", line=3),
)
LINE = Part(name="allocated", fixed=1.0, each=2.0, square=0.0, residual=0.5)
RAN_JSON = {
    "value": 8,
    "fits": True,
    "allocated": 100,
    "reserved": 200,
    "process": 300,
    "wanted": 250,
    "phase": "backward",
    "held": {"weights": 60, "gradients": 40},
    "failure": None,
    "notes": ["n"],
    "sent": {},
}
CARD_JSON = {
    "name": "L4",
    "total": 24 << 30,
    "margin": 1 << 29,
    "driver": 1 << 28,
    "engine": "rules",
}
LINE_JSON = {"name": "allocated", "fixed": 1.0, "each": 2.0, "square": 0.0, "residual": 0.5}


def to_json(found):
    """Return JSON with the keys in a file's order."""
    return json.dumps(found)


def test_what_fits():
    fit = Fit(
        title="t",
        variable="n",
        card=CARD,
        safe=7,
        best=8,
        limit=16,
        low=1,
        high=None,
        step=1,
        probes=(RAN, DIED),
        total=LINE,
        parts=(LINE,),
        sentences=("s",),
    )
    died = {
        **RAN_JSON,
        "value": 16,
        "fits": False,
        "allocated": 0,
        "reserved": 0,
        "process": 0,
        "wanted": 900,
        "phase": None,
        "held": {},
        "failure": {"kind": "memory", "text": "out", "line": 3},
        "notes": [],
        "sent": {},
    }
    assert to_json(fit_json(fit)) == to_json(
        {
            "title": "t",
            "variable": "n",
            "card": CARD_JSON,
            "best": 8,
            "safe": 7,
            "limit": 16,
            "low": 1,
            "high": None,
            "step": 1,
            "probes": [RAN_JSON, died],
            "total": LINE_JSON,
            "parts": [LINE_JSON],
            "sentences": ["s"],
        }
    )


def test_a_plan():
    as_it_is = Option(key="as it is", title="as it is", price="", code="", probe=RAN)
    unrun = Option(
        key="k", title="t", price="p", code="c", probe=None, why_not="w", foreseen=7, diff="d"
    )
    plan = Plan(
        title="t",
        card=CARD,
        target=5,
        variable="n",
        value=8,
        options=(as_it_is, unrun),
        sentences=("s",),
    )
    first = {
        "key": "as it is",
        "title": "as it is",
        "price": "",
        "code": "",
        "probe": RAN_JSON,
        "saved": 0,
        "saved_reserved": 0,
        "largest": None,
        "why_not": None,
        "foreseen": None,
        "cheapest": False,
        "diff": "",
    }
    second = {
        **first,
        "key": "k",
        "title": "t",
        "price": "p",
        "code": "c",
        "probe": None,
        "why_not": "w",
        "foreseen": 7,
        "diff": "d",
    }
    assert to_json(plan_json(plan)) == to_json(
        {
            "title": "t",
            "card": CARD_JSON,
            "target": 5,
            "variable": "n",
            "value": 8,
            "options": [first, second],
            "sentences": ["s"],
        }
    )


def test_layers():
    row = LayerRow(
        name="fc",
        kind="Linear",
        formula="2 x 3",
        parameters=6,
        weights=24,
        buffers=0,
        gradients=24,
        optimizer=48,
    )
    layers = Layers(title="m", rows=(row,), optimizer="Adam", shape=None, sentences=())
    assert to_json(layers_json(layers)) == to_json(
        {
            "title": "m",
            "rows": [
                {
                    "name": "fc",
                    "kind": "Linear",
                    "formula": "2 x 3",
                    "parameters": 6,
                    "weights": 24,
                    "buffers": 0,
                    "gradients": 24,
                    "optimizer": 48,
                    "saved": None,
                    "output": None,
                    "forward_flops": None,
                    "backward_flops": None,
                }
            ],
            "optimizer": "Adam",
            "shape": None,
            "sentences": [],
            "engine": "rules",
        }
    )
