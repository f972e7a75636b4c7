"""Tips for sharded programs, to the byte; none for healthy ones."""

import pytest

from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")

OLD = torch.__version__ < "2.11" or not torch.distributed.is_available()
pytestmark = pytest.mark.skipif(OLD, reason="the card runs the newest FSDP alone")

BEFORE = (
    MODEL
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

class Language(nn.Module):
    def __init__(self, words=64, width=1024, depth=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                          nn.Linear(4 * width, width)) for _ in range(depth))
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)

tokens = lambda rows=256, words=64: torch.zeros(1, rows, dtype=torch.long, device="cuda")
mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
torch.distributed.init_process_group("nccl", rank=0, world_size=4)
"""
)
STEPS = """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    for _ in range({passes}):
        model({given}).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
SHARDED = "for block in {blocks}: fully_shard(block)\nfully_shard(model)\n"
LAYERS = "model = net(2048, 5)\n" + SHARDED.format(blocks="model")
WORDS = "model = Language().cuda()\n" + SHARDED.format(blocks="model.blocks")
EARLY = """
blocks = list({blocks})
for at in range(2, len(blocks)):
    blocks[at].set_modules_to_backward_prefetch([blocks[at - 1], blocks[at - 2]])
"""
STEP, PASSES = (
    STEPS.format(passes=1, given="batch(16, 2048)"),
    STEPS.format(passes=3, given="batch(16, 2048)"),
)
READ = STEPS.format(passes=1, given="tokens()")
PROGRAMS = {
    "fsdp_reshard": {
        "layers": (LAYERS, STEP),
        "micro-batches": (LAYERS, PASSES),
        "blocks computed again": (WORDS, READ),
        "mixed precision": (WORDS.replace("(block)", "(block, mp_policy=mixed)"), READ),
    },
    "fsdp_prefetch": {
        "one ahead": (LAYERS, STEP),
        "two ahead": (LAYERS + EARLY.format(blocks="model"), STEP),
        "two ahead, blocks computed again": (WORDS + EARLY.format(blocks="model.blocks"), READ),
        "micro-batches": (LAYERS + EARLY.format(blocks="model"), PASSES),
    },
}
FAST = {("fsdp_reshard", "layers"), ("fsdp_prefetch", "one ahead"), ("fsdp_prefetch", "two ahead")}
CASES = [
    pytest.param(rule, name, marks=() if (rule, name) in FAST else pytest.mark.long)
    for rule, programs in PROGRAMS.items()
    for name in programs
]


@pytest.fixture
def run_ranks(run):
    """Provide run_ranks(code), which returns rank 0's trace of four."""

    def go(code):
        try:
            return run(code, before=BEFORE)[0]
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    return go


def of_rule(trace, rule):
    return [finding for finding in trace.all_tips() if finding.rule == rule]


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_the_peak_falls_by_what_was_said_where_the_line_is_pasted(run_ranks, rule, name):
    model, steps = PROGRAMS[rule][name]
    trace = run_ranks(model + steps)
    (said,) = of_rule(trace, rule)
    mended = run_ranks(f"{model}\n{said.code}\n{steps}")
    saved = trace.report().peak.allocated - mended.report().peak.allocated
    assert said.low == said.high == saved
    if rule == "fsdp_reshard":
        assert not of_rule(mended, rule)
    else:
        assert saved > 1 << 20
        again = [finding.title for finding in of_rule(mended, rule)]
        assert "one block" in said.title or not again


GATHERED = {
    "by torch's own": (
        """
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True{off}))
del state
""",
        ", cpu_offload=True",
    ),
    "by hand": (
        "state = {{k: v.full_tensor(){off} for k, v in model.state_dict().items()}}\n",
        ".cpu()",
    ),
}


@pytest.mark.parametrize("how", GATHERED)
def test_a_full_state_dict_goes_to_the_host(run_ranks, how):
    gather, to_host = GATHERED[how]
    ends = "torch.distributed.destroy_process_group()\n"
    program = (LAYERS + STEP).replace("2048, 5", "2048, 12").replace("AdamW", "SGD")
    program = program.replace(ends, "{gathers}" + ends)
    trace = run_ranks(program.format(gathers=gather.format(off="")))
    (said,) = of_rule(trace, "full_state")
    mended = run_ranks(program.format(gathers=gather.format(off=to_host)))
    assert said.low == said.high
    assert said.low == trace.report().peak.allocated - mended.report().peak.allocated > 50 << 20
    assert not of_rule(mended, "full_state")
    pasted = run_ranks(program.format(gathers=f"{said.code}\n"))
    assert pasted.report().peak.allocated == mended.report().peak.allocated


def test_nothing_is_kept_where_the_peak_would_rise(run_ranks):
    """The logits of a large vocabulary: the last block would lie beside them."""
    large = WORDS.replace("Language()", "Language(words=20_000)")
    reads = STEPS.format(passes=1, given="tokens(2048, 20_000)")
    trace = run_ranks(large + reads)
    assert not of_rule(trace, "fsdp_reshard")
    kept = run_ranks(f"{large}\nmodel.blocks[-1].set_reshard_after_forward(False)\n{reads}")
    assert kept.report().peak.allocated > trace.report().peak.allocated


def test_nothing_is_kept_of_a_model_that_is_called_without_a_backward(run_ranks):
    evaluated = "with torch.no_grad(): model(batch(16, 2048))\n"
    assert not of_rule(run_ranks(LAYERS + evaluated + STEP), "fsdp_reshard")


HEALTHY = {
    "fsdp": LAYERS + STEP,
    "fsdp of blocks that are computed again": WORDS + READ,
    "ddp": """
model = nn.parallel.DistributedDataParallel(net(2048, 5), gradient_as_bucket_view=True)
"""
    + STEP,
    "tensor parallel": """
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
mesh = init_device_mesh("cuda", (4,))
model = nn.Sequential(*(
    nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)) for _ in range(4)
)).cuda()
for block in model:
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
"""
    + STEP.replace("AdamW(model.parameters()", "AdamW(model.parameters(), foreach=False"),
    "a sharded checkpoint": LAYERS
    + STEP.replace("optimizer.zero_grad()", "optimizer.zero_grad(); state = model.state_dict()"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_of_many_ranks_gets_no_tip(run_ranks, name):
    report = run_ranks(HEALTHY[name]).report()
    assert [finding.title for finding in report.findings] == []
    assert report.peak.allocated > 20 << 20, "large enough for a tip to be worth it"
