"""Gradient checkpointing that eval mode switches off."""

from importlib.util import find_spec

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

RULE = "checkpointing_off"
OWN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.cuda.init()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gradient_checkpointing = False
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()

    def forward(self, x):
        return self.inner(x)
"""
MODEL = "model = Net().cuda()\nmodel.gradient_checkpointing = True\n"
INSIDE = "model = Outer().cuda()\nmodel.inner.gradient_checkpointing = True\n"
TRAINING = """
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(3):
    model(torch.randn(16384, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OF_TRANSFORMERS = """
import torch
from transformers import {kind}Config, {kind}{head}

torch.cuda.init()
config = {kind}Config(vocab_size=500, {sizes})
model = {kind}{head}(config).cuda()
model.gradient_checkpointing_enable()
model.eval()
"""
TRAINED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    ids = torch.zeros(64, 256, dtype=torch.int64, device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LLAMA = OF_TRANSFORMERS.format(
    kind="Llama",
    head="ForCausalLM",
    sizes="hidden_size=128, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4",
)
GPT2 = OF_TRANSFORMERS.format(
    kind="GPT2", head="LMHeadModel", sizes="n_embd=128, n_layer=6, n_head=4"
)
SILENT = {
    "training mode": MODEL + "model.train()\n" + TRAINING,
    "an evaluation behind the training": MODEL + TRAINING + "model.eval()\nwith torch.no_grad():\n"
    "    score = model(torch.randn(65536, 256, device='cuda')).mean()\n",
    "eval mode with the attribute off": MODEL.replace("True", "False")
    + "model.eval()\n"
    + TRAINING,
    "inference only": MODEL + "model.eval()\nwith torch.no_grad():\n"
    "    score = model(torch.randn(65536, 256, device='cuda')).mean()\n",
    "a forward that does not ask for the mode": MODEL + "model.eval()\n" + TRAINING,
}
BEFORE = {
    "a forward that does not ask for the mode": OWN.replace(
        "if self.gradient_checkpointing and self.training", "if self.gradient_checkpointing"
    )
}
of_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the models are those of transformers"
)


def tips(trace, rule=RULE):
    return [tip for tip in trace.report().findings if tip.rule == rule]


@pytest.mark.parametrize(
    ("code", "training", "before", "name"),
    [
        (MODEL + "model.eval()\n", TRAINING, OWN, "model"),
        (INSIDE + "model.inner.eval()\n", TRAINING, OWN, "model.inner"),
        pytest.param(LLAMA, TRAINED, "", "model", marks=of_transformers),
        pytest.param(GPT2, TRAINED, "", "model", marks=of_transformers),
    ],
)
def test_the_peak_falls_by_what_was_promised(run, code, training, before, name):
    trace, _ = run(code + training, before=before, card="T4")
    (tip,) = tips(trace)
    peak = trace.report().peak.allocated
    assert tip.title.startswith(f"`{name}` has gradient checkpointing on and is in eval mode")
    assert tip.code == f"{name}.train()   # before the training"
    mended, _ = run(f"{code}{tip.code}\n{training}", before=before, card="T4")
    assert 0 < tip.low <= peak - mended.report().peak.allocated <= tip.high
    assert tips(mended) == []


def test_the_blocks_are_not_told_to_be_checkpointed_again(run):
    trace, _ = run(MODEL + "model.eval()\n" + TRAINING, before=OWN, card="T4")
    assert "checkpointing" not in {tip.rule for tip in trace.all_tips()}


@pytest.mark.parametrize("what", SILENT)
def test_what_is_checkpointed_or_not_meant_to_be_is_not_told(run, what):
    trace, _ = run(SILENT[what], before=BEFORE.get(what, OWN), card="T4")
    assert tips(trace) == []
