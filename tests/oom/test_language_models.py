"""Remedies for language models let the program run on where they are pasted."""

from importlib.util import find_spec

import pytest
import torch

import nbmem
from nbmem import virtual

pytestmark = pytest.mark.torch
of_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="the models are those of transformers"
)

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size={words}, hidden_size={width}, intermediate_size=512, num_hidden_layers={layers},
    num_attention_heads=4, attn_implementation="{attention}",
)
with torch.device("cuda"):
    lm = LlamaForCausalLM(config)
"""
STEPS = """
adam = torch.optim.AdamW(lm.parameters())
for _ in range(2):
    ids = torch.zeros({rows}, {length}, dtype=torch.int64, device="cuda")
    lm(input_ids=ids, labels=ids).loss.backward()
    adam.step()
    adam.zero_grad()
"""
FAULTS = {
    "logits": {"words": 128256, "width": 128, "layers": 2, "rows": 16, "length": 512},
    "eager_attention": {"words": 500, "width": 128, "layers": 6, "rows": 32, "length": 2048},
    "checkpointing": {"words": 500, "width": 512, "layers": 12, "rows": 96, "length": 1024},
}
"""Of each remedy, a program that it lets run on, and that runs out of memory without it."""
LONG = ("logits", "checkpointing")
GATHERED = """
import torch
model = torch.nn.Linear(256, 32000).cuda().eval()

def evaluation_loop():
    all_preds = None
    for _ in range(50):
        with torch.no_grad():
            logits = model(torch.zeros(8192, 256, device="cuda"))
        all_preds = logits if all_preds is None else torch.cat([all_preds, logits])

evaluation_loop()
"""
HALF = """
import torch
from torch import nn
net = nn.Sequential(*(nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range({layers})))
adam = torch.optim.AdamW(net.parameters())
for _ in range(2):
    net(torch.zeros(8, 8192, device="cuda")).sum().backward()
    adam.step()
    adam.zero_grad()
"""


def remedies(code, file="cell.py"):
    """Run a program on a new virtual T4 until it runs out; return the remedies."""
    return explained(code, file).remedies


def explained(code, file="cell.py"):
    """Run a program on a new virtual T4 until it runs out; return the explanation."""
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(code, file, "exec"), names)
    return trace.report().ooms[0]


@of_transformers
@pytest.mark.parametrize(
    "rule", ["eager_attention", *(pytest.param(one, marks=pytest.mark.long) for one in LONG)]
)
def test_the_program_runs_on_with_the_first_remedy_pasted(rule):
    attention = "eager" if rule == "eager_attention" else "sdpa"
    values = {**FAULTS[rule], "attention": attention}
    found = {one.rule: one for one in remedies((MODEL + STEPS).format(**values))}
    assert found[rule].evidence.endswith("the program runs on.")
    code = f"{MODEL.format(**values)}\n{found[rule].code}\n{STEPS.format(**values)}"
    with virtual.activated("T4"):
        exec(compile(code, "cell.py", "exec"), {"__name__": "__main__"})


def test_an_evaluation_that_gathers_is_told_the_trainers_own_setting():
    found = remedies(GATHERED, "/site-packages/transformers/trainer.py")
    assert [one.rule for one in found] == ["eval_accumulation"]
    assert found[0].title.startswith("Set `eval_accumulation_steps=1` in TrainingArguments: ")
    assert found[0].high % (8192 * 32000 * 4) == 0


def test_the_same_loop_elsewhere_is_not_the_trainers():
    assert "eval_accumulation" not in {one.rule for one in remedies(GATHERED)}


EVALUATED = """
import torch
rows = 64
model = torch.nn.Linear(4096, 100_000).cuda().eval()

def evaluation_loop():
    with torch.no_grad():
        model(torch.zeros(rows, 1024, 4096, device="cuda"))

evaluation_loop()
"""
PREFERRED = """
import torch
from torch import nn
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(20))
).cuda()
model(torch.zeros(30_000, 4096, device="cuda")).sum().backward()
"""


def test_an_evaluations_batch_is_the_trainers_own_setting():
    found = remedies(EVALUATED, "/site-packages/transformers/trainer.py")
    first = next(one for one in found if one.rule == "batch_size")
    setting, _, size = first.code.partition("   # ")[0].partition(" = ")
    assert setting == "per_device_eval_batch_size"
    smaller = EVALUATED.replace("rows = 64", f"rows = {size}")
    with virtual.activated("T4"):
        exec(compile(smaller, "cell.py", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("of_pairs", [True, False])
def test_a_batch_of_pairs_has_two_rows_for_each_sample(of_pairs):
    name = "dpo_trainer" if of_pairs else "sft_trainer"
    found = remedies(PREFERRED, f"/site-packages/trl/trainer/{name}.py")
    title = next(one.title for one in found if one.rule == "batch_size")
    assert f", not {15_000 if of_pairs else 30_000} (" in f"{title} ("


PROMPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=128256, hidden_size=256, intermediate_size=512, num_hidden_layers=1,
    num_attention_heads=4,
)
lm = LlamaForCausalLM(config).half().cuda()
ids = torch.zeros(8, 8192, dtype=torch.int64, device="cuda")
with torch.no_grad():
    lm(ids{more}).logits[:, -1].argmax(-1)
"""


@of_transformers
def test_a_prompt_is_told_to_score_the_last_position_alone():
    first = remedies(PROMPT.format(more=""))[0]
    assert first.rule == "last_logits"
    assert first.low == first.high == 8 * 8192 * 128256 * 2
    argument = first.code.partition("   # ")[0]
    with virtual.activated("T4"):
        exec(PROMPT.format(more=f", {argument}"), {"__name__": "__main__"})


def test_eight_bits_are_offered_where_they_are_enough():
    found = {one.rule: one for one in remedies(HALF.format(layers=14))}
    weights = 14 * 8192 * 8192
    each = weights + 4 * weights // 256
    assert found["optimizer_state"].low == 2 * (4 * weights - each)
    assert "AdamW8bit" in found["optimizer_state"].code
    assert "adapters" not in found, "it is no model of transformers"
    most = explained(HALF.format(layers=24))
    assert most.remedies == ()
    (note,) = most.notes
    assert note.startswith("No batch is small enough: weights of 6.00 GiB, as much of gradients")
    assert note.endswith("such as adapters (LoRA), or load them in 16 bits.")


def test_what_runs_out_again_is_no_remedy():
    for one in remedies(HALF.format(layers=24)):
        assert "this request only" not in one.title


GENERATION = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2,
)
lm = LlamaForCausalLM(config).to(torch.{dtype}).cuda()
{change}
with torch.no_grad():
    lm(torch.zeros(16, 12000, dtype=torch.int64, device="cuda"), logits_to_keep=1)
"""


@of_transformers
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_heads_that_no_fused_kernel_shares_are_repeated(dtype, monkeypatch):
    from transformers.integrations import sdpa_attention

    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", sdpa_attention.use_gqa_in_sdpa)
    first = remedies(GENERATION.format(dtype=dtype, change=""))[0]
    assert first.rule == "eager_attention"
    assert "No fused kernel of this card takes heads that share keys" in first.evidence
    with virtual.activated("T4"):
        exec(GENERATION.format(dtype=dtype, change=first.code), {"__name__": "__main__"})
        assert torch.cuda.max_memory_allocated() < 2 << 30


ADAPTED = """
import torch
from torch import nn

class Adapted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.lora_A = nn.Linear(width, 8, bias=False)
        self.lora_B = nn.Linear(8, width, bias=False)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))

with torch.device("cuda"):
    net = nn.Sequential(*(Adapted(8192) for _ in range(40)))
batch_size = {rows}

def _inner_training_loop():
    optimizer = None
    for _ in range(2):
        net(torch.zeros(batch_size, 8192, device="cuda")).sum().backward()
        optimizer = optimizer or torch.optim.AdamW(p for p in net.parameters() if p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()

_inner_training_loop()
"""


def test_before_the_first_step_a_trainer_is_expected_to_train_the_adapters_alone():
    trainer = "/site-packages/transformers/trainer.py"
    found = {one.rule: one for one in remedies(ADAPTED.format(rows=6000), trainer)}
    code = found["batch_size"].code
    assert code.startswith("per_device_train_batch_size = ")
    with virtual.activated("T4"):
        exec(compile(ADAPTED.format(rows=code.split()[2]), trainer, "exec"), {"__name__": "a"})
