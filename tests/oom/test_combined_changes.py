"""Changes that suffice only together are told as one remedy, with the lines of all."""

from importlib.util import find_spec

import pytest

import nbmem
from nbmem import virtual

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("transformers") is None, reason="the model is transformers'"),
]

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=128256, hidden_size=512, intermediate_size=1408, num_hidden_layers={layers},
    num_attention_heads=8,
)
with torch.device("cuda"):
    lm = LlamaForCausalLM(config)
"""
STEPS = """
sgd = torch.optim.SGD(lm.parameters())
for _ in range(2):
    ids = torch.zeros(1, 8192, dtype=torch.int64, device="cuda")
    out = lm(input_ids=ids, labels=ids)
    out.loss.backward()
    sgd.step()
    sgd.zero_grad()
"""


def explained(before, after):
    """Run a program on a new virtual T4 until it runs out; return the explanation."""
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(before + after, "cell.py", "exec"), names)
    return trace.report().ooms[0]


@pytest.mark.long
def test_a_pair_is_told_where_neither_is_enough_and_lets_the_program_run_on():
    model = MODEL.format(layers=40)
    first = explained(model, STEPS).remedies[0]
    assert first.rule == "combined"
    assert first.title.startswith(
        "Compute the loss in parts of 1,024 positions and compute activations again in backward, "
        "together: about "
    )
    assert first.evidence.startswith("In the simulator each of these alone runs out again. ")
    assert "a checkpoint around each LlamaDecoderLayer" in first.evidence
    in_parts, checkpoints = first.code.split("\n\nlm.gradient")
    for alone in (in_parts, f"lm.gradient{checkpoints}"):
        assert explained(f"{model}\n{alone}\n", STEPS).reason
    with virtual.activated("T4"):
        exec(compile(f"{model}\n{first.code}\n{STEPS}", "cell.py", "exec"), {"__name__": "x"})


@pytest.mark.long
def test_a_pair_that_keeps_the_batch_is_told_beside_a_smaller_batch():
    model, steps = MODEL.format(layers=40), STEPS.replace("(1, 8192,", "(8, 1024,")
    batch, pair = explained(model, steps).remedies
    assert (batch.rule, pair.rule) == ("batch_size", "combined")
    assert "batch" not in pair.title
    with virtual.activated("T4"):
        exec(compile(f"{model}\n{pair.code}\n{steps}", "cell.py", "exec"), {"__name__": "x"})


@pytest.mark.long
def test_no_pair_is_tried_where_one_change_is_enough():
    found = explained(MODEL.format(layers=4), STEPS).remedies
    assert "logits" in {one.rule for one in found}
    assert "combined" not in {one.rule for one in found}


def test_scores_and_the_loss_are_in_no_checkpointed_block():
    """Checkpoints around the layers leave the result, and what is larger than in any layer."""
    from nbmem.report.analysis.oom.continuations.continuation import Continuation, FutureBlock
    from nbmem.report.analysis.oom.continuations.recomputation import _recomputed

    sizes = (8, 8, 8, 8, 8, 64, 8)  # the last but one: scores; the last: behind the layers
    blocks = tuple(
        FutureBlock(at, 20 - at, size, 0, -1, saved=True, behind=at == 6)
        for at, size in enumerate(sizes)
    )
    then, freed = _recomputed(Continuation(blocks=blocks, period=20, steps=1), [], 3, 8)
    kept = [one for one in then.blocks if one.freed_at == 20 - one.requested_at]
    assert freed == []
    assert [one.size for one in kept if one.requested_at in (5, 6)] == [64, 8]
    assert len(then.blocks) > len(blocks), "others are computed again"
