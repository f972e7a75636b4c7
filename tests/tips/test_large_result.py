"""One result that is larger than the card, or most of the peak."""

import re

import pytest

from tests.tips.measure import tip_and_saving
from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")

HEAD = """
table = nn.Embedding(64000, 512, dtype=torch.float16, device="cuda")
head = nn.Linear(512, 64000, bias=False, dtype=torch.float16, device="cuda")
tokens = torch.randint(64000, (2, 1024), device="cuda")
with torch.no_grad():
    for _ in range(3):
        scores = {scores}
        word = scores[:, -1].argmax(-1)
        del scores
"""
REFUSED = {
    "a function": (
        "x = torch.randn(90000, 8, device='cuda')\ny = torch.cdist(x, x)",
        "torch.cdist",
    ),
    "an operator": ("x = torch.randn(90000, 8, device='cuda')\ny = x @ x.T", "train.py:2"),
    "a module": (
        "wide = nn.Embedding(8, 4096).cuda()\nx = wide(torch.zeros(1 << 20, device='cuda').long())",
        "wide",
    ),
}


def refused(code):
    """Return the tip under an out-of-memory error, None without one."""
    import nbmem.api.tracing as nbmem
    from nbmem import virtual

    virtual.activate("T4")
    names = {"__name__": "__main__"}
    try:
        exec(compile(MODEL, "before.py", "exec"), names)
        trace = nbmem.trace("cell", namespace=names)
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(code, "train.py", "exec"), names)
    finally:
        virtual.deactivate()
    return next(iter(said(trace)), None)


def said(trace):
    return [f for f in trace.report().findings if f.rule == "large_result"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_larger_than_the_card_is_told_with_its_place(name):
    code, place = REFUSED[name]
    found = refused(code)
    assert place in found.title
    parts = int(re.search(r"in (\d+) parts", found.title)[1])
    assert found.high // parts <= (16 << 30) // 4
    assert found.low == found.high - -(-found.high // parts)


def test_a_batch_that_is_too_large_is_not_told():
    assert refused("net(4096, 16)(batch(200000, 4096)).sum().backward()") is None


def test_the_float32_copy_of_a_result(run):
    scores = ("head(table(tokens)).float()", "head(table(tokens[:, -1:])).float()")
    codes = (HEAD.format(scores=one) for one in scores)
    tip, saving = tip_and_saving(run, "large_result", codes, before=MODEL)
    assert tip.high == pytest.approx(saving, rel=0.01)
    assert "head" in tip.title


@pytest.mark.parametrize("scores", ["head(table(tokens))", "head(table(tokens)).softmax(-1)"])
def test_a_result_without_a_copy_in_float32_is_not_told(run, scores):
    trace, _ = run(HEAD.format(scores=scores), before=MODEL)
    assert said(trace) == []
