"""A remedy of a call without gradients is tried up to the end of that call."""

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
    vocab_size=500, hidden_size=1024, intermediate_size=2048, num_hidden_layers={layers},
    num_attention_heads=8, num_key_value_heads={kv},
)
with torch.device("cuda"):
    lm = LlamaForCausalLM(config).half().eval()
"""
HIDDEN = """
ids = torch.zeros({rows}, 1024, dtype=torch.int64, device="cuda")
with torch.inference_mode():
    {result} = lm.model(ids)
    hidden = {result}.last_hidden_state{more}
"""
GENERATED = """
batch_size = {rows}
ids = torch.zeros(batch_size, {length}, dtype=torch.int64, device="cuda")
with torch.no_grad():
    lm.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens={tokens}, do_sample=False,
        pad_token_id=0, {argument}
    )
"""
BLOCKS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(a, 4 * b), nn.GELU(), nn.Linear(4 * b, b))
            for a, b in zip(widths, widths[1:])
        )
        self.kept = []

    def forward(self, x):
        states = []
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return states

net = Net({widths}).cuda().eval()
batch = torch.zeros({rows}, 1024, device="cuda")
with torch.no_grad():
    states = net(batch)
"""
EQUAL = "[1024] * 25"
UNEQUAL = "[1024 + 4 * at for at in range(25)]"


def explained(code):
    """Run a program on a new virtual T4 until it runs out; return the explanation."""
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(code, "cell.py", "exec"), names)
    return trace.report().ooms[0]


def by_rule(code):
    return {one.rule: one for one in explained(code).remedies}


def runs(code, conf=None):
    with virtual.activated("T4", conf=conf):
        exec(compile(code, "cell.py", "exec"), {"__name__": "__main__"})


def test_a_smaller_batch_is_tried_through_the_other_layers_and_is_enough():
    found = by_rule(BLOCKS.format(widths=EQUAL, rows=220_000))
    assert [*found] == ["batch_size"]  # no setting that would serve this request alone
    assert found["batch_size"].evidence.endswith(
        "Tried through the rest of the call, each layer as those before it: it ends."
    )
    rows = int(found["batch_size"].code.split()[2])
    assert rows < 160_000
    runs(BLOCKS.format(widths=EQUAL, rows=rows))
    with pytest.raises(torch.OutOfMemoryError):
        runs(BLOCKS.format(widths=EQUAL, rows=rows * 5 // 4))


def test_of_unequal_layers_the_rest_of_the_call_is_not_known():
    found = explained(BLOCKS.format(widths=UNEQUAL, rows=220_000)).remedies
    assert found
    assert all(one.title.endswith("for this request only") for one in found)


@of_transformers
def test_a_cache_for_nobody_is_told_use_cache_false_which_is_enough():
    model = MODEL.format(layers=40, kv=8)
    call = HIDDEN.format(rows=96, result="out", more="")
    found = by_rule(model + call)["unread_cache"]
    assert found.title.startswith("Call the model with `use_cache=False`: ")
    assert found.code.startswith("lm.config.use_cache = False")
    assert found.evidence.endswith("each layer as those before it: it ends.")
    runs(f"{model}\n{found.code}\n{call}")


@of_transformers
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(HIDDEN.format(rows=96, result="out", more=", out.past_key_values"), id="read"),
        pytest.param(
            HIDDEN.format(rows=96, result="out", more="").replace("(ids)", "(ids, use_cache=True)"),
            id="asked for",
        ),
    ],
)
def test_a_cache_that_is_read_is_left_alone(call):
    assert "unread_cache" not in by_rule(MODEL.format(layers=40, kv=8) + call)


@of_transformers
@pytest.mark.parametrize(("kv", "rows", "length"), [(8, 128, 1400), (2, 1024, 256)])
def test_a_generation_is_tried_through_its_tokens(kv, rows, length):
    model = MODEL.format(layers=16, kv=kv)
    values = {"rows": rows, "length": length, "tokens": 12, "argument": ""}
    found = by_rule(model + GENERATED.format(**values))
    batch, cache = found["batch_size"], found.get("offloaded_cache")
    assert (cache is not None) == (kv == 8)
    ends = "and the 11 tokens that generate() makes after it, each layer as those before it"
    assert batch.evidence.endswith(f"Tried through the rest of the call {ends}: it ends.")
    rows = int(batch.code.split()[2])
    runs(model + GENERATED.format(**{**values, "rows": rows}))
    if cache is not None:
        argument = cache.code.partition("#")[0]
        runs(model + GENERATED.format(**{**values, "argument": argument}))


@of_transformers
def test_further_tokens_of_a_running_generation_are_counted_and_saved(tmp_path):
    model = MODEL.format(layers=4, kv=8)
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    values = {"rows": 2200, "length": 150, "tokens": 200, "argument": ""}
    with virtual.activated("T4"):
        torch.cuda.init()
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(compile(model + GENERATED.format(**values), "cell.py", "exec"), names)
    call = trace.session.refusals[0].call
    assert (call.blocks, call.unread, call.offloads) == (4, False, True)
    assert call.cached > 150
    left = call.tokens_left
    assert left in {
        349 - call.cached,
        350 - call.cached,
    }  # the failing layer may not have its token
    saved = nbmem.open(trace.save(tmp_path / "one.nbmem"))
    assert saved.session.refusals[0].call == call
    found = {one.rule: one for one in trace.report().ooms[0].remedies}
    assert "grows_each_step" not in found
    batch = found["batch_size"]
    assert batch.evidence.endswith(f"the {left} tokens that generate() still makes: it ends.")
    runs(model + GENERATED.format(**{**values, "rows": int(batch.code.split()[2])}))
    assert found["fragmentation"].evidence.endswith("generate() still makes: it ends.")
    runs(model + GENERATED.format(**values), conf="expandable_segments:True")
