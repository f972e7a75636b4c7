"""Tensors in a module's attributes that stay on the card when it is moved."""

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

import torch

from tests.tips.programs import MODEL

RULE = "attributes_not_moved"
MIB = 1 << 20
CACHING = MODEL + (
    """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.cache, self.last = net(1024, 2).cpu(), [None] * 3, None

    def forward(self, x):
        for i in range(3):
            x = self.layers(x)
            self.cache[i] = x
        return x.mean(0)

class Pipeline:
    def __init__(self, encoder):
        self.encoder = encoder
"""
)
LEFT = """
encoder = Encoder().cuda()
with torch.no_grad():
    code = encoder(batch(16384)).cpu()
{before}
encoder.to("cpu")
{behind}
"""
EMPTIED = LEFT.format(before="encoder.cache = [None] * 3", behind="")
SILENT = {
    "the cache is emptied before": EMPTIED,
    "the cache is moved, too": LEFT.format(
        before="", behind="encoder.cache = [one.cpu() for one in encoder.cache]"
    ),
    "a variable holds the tensors, too": LEFT.format(
        before="features = list(encoder.cache)", behind=""
    ),
    "the module comes back": LEFT.format(before="", behind='encoder.to("cuda")'),
    "only a part of the module was moved": LEFT.format(
        before="encoder.head = nn.Linear(1024, 1024).cuda()",
        behind="encoder.head.cuda()",
    ),
    "the module was never on the card": """
encoder = Encoder()
encoder.cache = [batch(16384) for _ in range(3)]
y = encoder.cache[0] * 2
""",
    "its results are small": LEFT.format(before="", behind="").replace("16384", "128"),
}


def tips(trace):
    return [tip for tip in trace.report().findings if tip.rule == RULE]


@pytest.mark.parametrize("behind", ["", "pipeline = Pipeline(encoder)"])
def test_emptying_the_attribute_frees_what_was_promised(run, behind):
    trace, names = run(LEFT.format(before="", behind=behind), before=CACHING, card="T4")
    (tip,) = tips(trace)
    assert tip.title == (
        "`encoder.cache` is still on the card though `encoder` was moved to the CPU: empty it "
        "before, 192.0 MiB less"
    )
    held = torch.cuda.memory_allocated()
    names["encoder"].cache.clear()
    assert tip.low == tip.high == 192 * MIB == held - torch.cuda.memory_allocated()


def test_several_attributes_are_told_together(run):
    code = LEFT.format(before="encoder.last = batch(16384)", behind="")
    (tip,) = tips(run(code, before=CACHING, card="T4")[0])
    assert tip.title.startswith("Attributes of `encoder` are still on the card")
    assert tip.low == 256 * MIB


@pytest.mark.parametrize("what", SILENT)
def test_what_is_not_left_behind_is_not_told(run, what):
    trace, _ = run(SILENT[what], before=CACHING, card="T4")
    assert tips(trace) == []
