"""Remedies of a plan for transformers' models hold what their lines hold."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from nbmem import virtual
from nbmem.estimates.programs import programs
from nbmem.estimates.runs.probe_run import Request, probe

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=8000, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, attn_implementation="eager",
)
model = LlamaForCausalLM(config).cuda()
"""
STEPS = """
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    ids = torch.zeros(4, 1024, dtype=torch.int64, device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OTHER = "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\nmodel(torch.ones(8, device='cuda'))"


def run(source, *keys):
    """Run a program under remedies on a virtual T4."""
    return probe(programs.cell(source, {}), Request(card=virtual.find_card("T4"), remedies=keys))


@pytest.mark.parametrize("key", ["loss_in_parts", "fused_attention"])
def test_the_lines_hold_what_the_remedy_holds(key):
    plain, changed = run(MODEL + STEPS), run(MODEL + STEPS, key)
    assert changed.refused is None
    assert changed.probe.allocated < plain.probe.allocated
    pasted = run(f"{MODEL}\n{changed.code}\n{STEPS}")
    assert pasted.probe.allocated == changed.probe.allocated


def test_other_models_are_left_alone():
    assert run(OTHER, "loss_in_parts").refused
    assert run(OTHER, "fused_attention").refused
