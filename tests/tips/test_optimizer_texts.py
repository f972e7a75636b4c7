"""Tips about the optimizer say what it was set to."""

import pytest

from tests.tips.programs import MODEL

pytest.importorskip("torch", reason="the programs are torch programs")

STEP = """
model = net(2048, 10){kind}
optimizer = torch.optim.AdamW(model.parameters(), {options})
for _ in range(2):
    model(batch(8, 2048){kind}).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def tips(run, options, kind=""):
    trace, names = run(STEP.format(options=options, kind=kind), before=MODEL)
    found = [f for f in trace.all_tips() if f.rule == "optimizer_state"]
    return found, names["optimizer"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", "the foreach implementation (the default) make it"),
        ("foreach=True", "the foreach implementation make it"),
        ("foreach=False", "steps each parameter alone (foreach=False) make it"),
        ("foreach=False, capturable=True", "steps each parameter alone (foreach=False) make it"),
    ],
)
def test_the_implementation_is_the_one_that_was_set(run, options, wanted):
    found, _ = tips(run, options)
    (fused,) = (f for f in found if "fused" in f.title)
    assert wanted in fused.evidence


def test_where_fused_is_set_it_is_not_proposed(run):
    found, _ = tips(run, "fused=True")
    assert not [f for f in found if "`fused=True`" in f.title]


@pytest.mark.parametrize(
    ("options", "kind", "copies", "size"),
    [("", "", 2, 4), ("amsgrad=True", "", 3, 4), ("", ".bfloat16()", 2, 2)],
)
def test_eight_bits_and_momentum_are_counted_by_type_and_copies(run, options, kind, copies, size):
    found, optimizer = tips(run, options, kind)
    (less,) = (f for f in found if "Less optimizer state" in f.title)
    elements = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    left = sorted((2 * elements, size * elements))
    assert less.high == pytest.approx(copies * size * elements - left[0], rel=0.01)
    assert less.low == pytest.approx(copies * size * elements - left[1], rel=0.01)


def test_the_class_of_the_activation_is_named(run):
    code = """
model = nn.Sequential(nn.Linear(1024, 4096), nn.LeakyReLU(), nn.Linear(4096, 1024)).cuda()
with torch.no_grad():
    model(batch(16384))
"""
    trace, _ = run(code, before=MODEL)
    (found,) = (f for f in trace.all_tips() if f.rule == "inplace_activations")
    assert "`nn.LeakyReLU(inplace=True)`" in found.title
