"""A checkpoint that a function loads is known by the order of its tensors."""

import pytest

from tests.tips.measure import tip_and_saving
from tests.tips.programs import MODEL

LOAD = """
file = io.BytesIO()
torch.save(net().state_dict(), file)
file.seek(0)

def load():
    model = net()
    {copies}
    return model

model = load()
with torch.no_grad():
    model(batch(16))
"""
FROM_FILE = "model.load_state_dict(torch.load(file, map_location={place!r}))"
HEALTHY = {
    "a copy of one tensor": "model[0][0].weight.data.copy_(torch.rand_like(model[0][0].weight))",
    "weights made anew, one by one": "for p in model.parameters():\n"
    "        p.data = torch.randn_like(p.data)",
    "another type": "model = model.half().float()",
}


def said(trace):
    return [f for f in trace.report().findings if f.rule == "checkpoint_on_gpu"]


def test_a_checkpoint_of_a_function_is_told_without_stacks(run):
    codes = (LOAD.format(copies=FROM_FILE.format(place=place)) for place in ("cuda", "cpu"))
    before = MODEL + "import io"
    tip, saving = tip_and_saving(run, "checkpoint_on_gpu", codes, before=before, card="T4")
    assert tip.low == saving
    assert "map_location" in tip.title


@pytest.mark.parametrize("name", HEALTHY)
def test_other_tensors_before_the_first_forward_are_not_told(run, name):
    trace, _ = run(LOAD.format(copies=HEALTHY[name]), before=MODEL + "import io")
    assert said(trace) == []
