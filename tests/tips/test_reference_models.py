"""A reference model has a part of its own, and a model with adapters needs none."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.report.ledger.reference_models import reference_models

nn = torch.nn
pytestmark = pytest.mark.torch


class PeftModel(nn.Module):
    """A wrapper that passes calls on, as peft's does."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model.requires_grad_(requires_grad=False)
        self.lora_A = nn.Linear(2000, 2, bias=False, device="cuda")

    def forward(self, ids):
        scores = self.base_model(input_ids=ids).logits
        return scores + self.lora_A(scores).sum(-1, keepdim=True)


PeftModel.__module__ = "peft.peft_model"


class Plain(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def forward(self, ids):
        return self.base_model(input_ids=ids).logits


def causal(width=256):
    config = transformers.LlamaConfig(
        vocab_size=2000, hidden_size=width, intermediate_size=256, num_hidden_layers=6,
        num_attention_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).cuda()


STEP = """
ids = torch.zeros(1, 8, dtype=torch.int64, device="cuda")
with torch.set_grad_enabled({grad}):
    goal = reference(input_ids=ids).logits
(policy(ids) - goal).square().mean().backward()
"""


def trained_beside(run, wrapper, width, *, grad=False):
    before = f"import torch\nfrom {__name__} import PeftModel, Plain, causal\n"
    before += f"policy, reference = {wrapper.__name__}(causal()), causal({width})"
    trace, names = run(STEP.format(grad=grad), before=before, card="T4")
    size = sum(p.numel() * p.element_size() for p in names["reference"].parameters())
    parts = dict(CardLedger(trace.session).ledgers([0])[0].parts_of(Category.WEIGHTS))
    return trace, parts.get("reference"), size


def told(trace):
    return [tip for tip in trace.report().findings if tip.rule == "two_models"]


def test_the_reference_of_a_model_with_adapters_is_that_model(run):
    trace, part, size = trained_beside(run, PeftModel, 256)
    assert part == size
    (tip,) = told(trace)
    assert tip.low == size + 2 * 512  # its two buffers, in blocks
    assert tip.code.startswith("with policy.disable_adapter():\n    ...")
    compile(tip.code, "<tip>", "exec")


def test_the_reference_of_a_model_that_is_trained_whole_is_needed(run):
    trace, part, size = trained_beside(run, Plain, 256)
    assert part == size
    assert not told(trace)


@pytest.mark.parametrize(("width", "grad"), [(128, False), (256, True)])
def test_a_model_of_another_size_or_with_gradients_is_no_reference(run, width, grad):
    trace, part, _ = trained_beside(run, PeftModel, width, grad=grad)
    assert part is None
    assert not told(trace)


@pytest.mark.parametrize("odd", ["x", [], ["x"], [{}], None, 3])
def test_a_file_may_say_anything_of_a_model(odd):
    model = {"name": "m", "blocks": [], "libraries": odd, "head": odd}
    calls = [{"module": "m", "grad": grad} for grad in (True, False)]
    assert list(reference_models({"modules": [model], "calls": calls})) == []
