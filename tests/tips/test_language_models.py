"""Tips for language models promise bytes that the changed program saves."""

import importlib
from importlib.util import find_spec

import pytest

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.report.analysis.library_calls import checkpointing_call, loss_in_parts_of

torch = pytest.importorskip("torch", reason="the programs are torch programs")
of_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the models are those of transformers"
)

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size={words}, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads={shared}, attn_implementation="{attention}",
)
lm = LlamaForCausalLM(config){cuda}
{change}
"""
TRAINING = """
optimizer = torch.optim.SGD(lm.parameters())
for _ in range(2):
    ids = torch.zeros({rows}, {length}, dtype=torch.int64, device="cuda")
    lm(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLAIN = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding({words}, 64), nn.Linear(64, {words})

    def forward(self, ids):
        return self.head(self.words(ids))

net = Net().cuda()
for _ in range(2):
    ids = torch.zeros({rows}, {length}, dtype=torch.int64, device="cuda")
    F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
"""
WORDS = {"words": 32000, "attention": "sdpa", "rows": 8, "length": 512}
SQUARE = {"words": 500, "attention": "eager", "rows": 4, "length": 2048}
GROUPED = {**SQUARE, "attention": "sdpa", "shared": 2}
BLOCKS = {"words": 500, "attention": "sdpa", "rows": 128, "length": 256}


def record(values, change="", code=MODEL + TRAINING):
    """Record a program on a new virtual T4; return its trace."""
    values = {"shared": 4, **values}
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        with trace:
            exec(
                compile(code.format(**values, cuda=".cuda()", change=change), "cell.py", "exec"),
                names,
            )
    return trace


def peak(trace):
    """Return the highest allocated bytes."""
    return trace.report().peak.allocated


@of_transformers
@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("logits", WORDS),
        ("eager_attention", SQUARE),
        ("eager_attention", GROUPED),
        ("checkpointing", BLOCKS),
    ],
)
def test_the_pasted_code_saves_what_the_tip_promises(rule, values, monkeypatch):
    attention = importlib.import_module("transformers.integrations.sdpa_attention")
    monkeypatch.setattr(attention, "use_gqa_in_sdpa", attention.use_gqa_in_sdpa)
    trace = record(values)
    (tip,) = [one for one in trace.all_tips() if one.rule == rule]
    assert tip.code is not None
    saved = peak(trace) - peak(record(values, tip.code))
    assert tip.low <= saved <= tip.high
    assert tip.low > 0


@pytest.mark.long
@of_transformers
def test_the_first_tip_of_each_program_is_its_largest_part():
    assert record(WORDS).all_tips()[0].rule == "logits"
    assert record(SQUARE).report().findings[0].rule == "eager_attention"
    assert record(BLOCKS).report().findings == ()


@of_transformers
def test_a_library_checkpoints_by_its_own_method():
    (tip,) = [one for one in record(BLOCKS).all_tips() if one.rule == "checkpointing"]
    assert tip.code.startswith("lm.gradient_checkpointing_enable(")
    changed = record(BLOCKS, tip.code).all_tips()
    assert "checkpointing" not in {one.rule for one in changed}


@of_transformers
def test_a_loss_in_parts_is_the_models_own_loss():
    names = {}
    exec(MODEL.format(words=300, attention="sdpa", shared=4, cuda="", change=""), names)
    lm = names["lm"].train()
    ids = torch.arange(1400).reshape(2, 700) % 300
    labels = torch.where(torch.arange(700) < 100, -100, ids)
    own = lm(input_ids=ids, labels=labels).loss
    own.backward()
    gradient = lm.lm_head.weight.grad.clone()
    lm.zero_grad()
    exec(loss_in_parts_of("lm"), names)
    parts = lm(input_ids=ids, labels=labels).loss
    parts.backward()
    torch.testing.assert_close(parts, own)
    torch.testing.assert_close(lm.lm_head.weight.grad, gradient)
    assert lm.eval()(input_ids=ids, labels=labels).logits.shape == (2, 700, 300)


@of_transformers
def test_scores_that_a_model_scales_get_no_code():
    code = MODEL.replace("lm = ", "config.logits_scaling = 2.0\nlm = ") + TRAINING
    (tip,) = [one for one in record(WORDS, code=code).all_tips() if one.rule == "logits"]
    assert tip.code is None


def test_a_models_own_classes_are_told_without_code():
    values = {"words": 32000, "rows": 8, "length": 512}
    assert record(values, code=PLAIN).report().findings == ()  # the card has room
    (tip,) = record({**values, "rows": 24}, code=PLAIN).report().findings
    assert (tip.rule, tip.code) == ("logits", None)


@pytest.mark.parametrize(
    ("name", "path"), [("Module.net", ""), ("Module", "net")], ids=["called inside", "called"]
)
def test_a_model_that_only_an_object_has_is_named_in_its_class(name, path):
    inner = {"path": path, "library": "transformers", "checkpoints": True}
    model = {"name": name, "class": "Module", "typed": False, "libraries": [inner]}
    code = checkpointing_call(model, path)
    assert code.startswith("# in the class Module:\nself.net.gradient_checkpointing_enable(")


def test_a_model_without_any_name_gets_no_code():
    inner = {"path": "", "library": "diffusers", "checkpoints": True}
    model = {"name": "UNet", "class": "UNet", "typed": False, "libraries": [inner]}
    assert checkpointing_call(model, "") is None


COLLECTED = """
lm.eval()
kept = []
for _ in range(3):
    ids = torch.zeros({rows}, {length}, dtype=torch.int64, device="cuda")
    kept.append(lm(input_ids=ids).logits)
"""


@of_transformers
def test_scores_without_a_loss_are_told_no_loss_in_parts():
    (tip,) = [
        one for one in record(WORDS, code=MODEL + COLLECTED).all_tips() if one.rule == "logits"
    ]
    assert tip.title.startswith("If only the last position's scores are read")
