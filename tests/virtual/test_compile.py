"""torch.compile on a virtual card, by Inductor's plan or eagerly."""

import gc
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbmem import virtual
from nbmem.virtual.patches.compiled.compiler import PLANNED
from nbmem.virtual.warnings import COMPILE
from tests.virtual.allocation_history import allocation_sizes

planned = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")
THRESHOLD = gc.get_threshold()
SIDE = 256
BYTES = SIDE * SIDE * 4


def double(x):
    return (x * 2).relu()


def chain(x):
    return ((x * 2).relu() + 1).sin() * x


compiled_before = torch.compile(double, mode="reduce-overhead", fullgraph=True)


def square(**options):
    return torch.zeros(SIDE, SIDE, device="cuda", **options)


def second_run_sizes(act):
    """Return sizes allocated and, negative, freed by a second run."""
    act()
    return allocation_sizes(act)


def train(function):
    """Return the peak bytes of one forward and backward."""
    x = torch.randn(SIDE, SIDE, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    function(x).sum().backward()
    return torch.cuda.max_memory_allocated()


@planned
def test_a_fused_region_takes_its_result_alone(gpu):
    x = square()
    assert second_run_sizes(lambda: chain(x)) == [
        BYTES,
        BYTES,
        -BYTES,
        BYTES,
        -BYTES,
        BYTES,
        -BYTES,
        BYTES,
        -BYTES,
    ]
    for function in (torch.compile(chain), torch.compile(chain, fullgraph=True)):
        assert second_run_sizes(lambda function=function: function(x)) == [BYTES]
    assert gpu.notes == []


@planned
def test_backward_computes_again_what_eager_mode_saves(gpu):
    x = square(requires_grad=True)
    compiled = torch.compile(chain)
    compiled(x).sum().backward()
    x.grad = None
    before = torch.cuda.memory_allocated()
    out = compiled(x)
    assert torch.cuda.memory_allocated() - before == BYTES  # the result; x is all that is saved
    out = chain(x)
    assert torch.cuda.memory_allocated() - before == 4 * BYTES
    del out


@planned
def test_compiling_collects_what_the_program_left_in_cycles(gpu):
    """As the compiler's own millions of objects bring about; generation 2 is rarely looked at."""
    x, cycle = square(), [square()]
    cycle.append(cycle)
    gc.collect()
    del cycle
    out = torch.compile(double)(x)
    assert torch.cuda.memory_allocated() == x.nbytes + out.nbytes
    assert gc.get_threshold() == THRESHOLD


@planned
def test_a_launch_that_times_configurations_takes_what_clears_the_cache(gpu):
    x = square()
    compiled = torch.compile(chain)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled(x)
    assert torch.cuda.max_memory_allocated() - before == BYTES + gpu.card.l2_bytes
    torch.cuda.reset_peak_memory_stats()
    compiled(x)
    assert torch.cuda.max_memory_allocated() - before == BYTES


@planned
def test_a_later_configuration_copies_what_it_writes_over_where_the_first_had_no_room(gpu):
    """What clears the cache has raised the peak; the kernel reads and writes by two arguments."""
    x = torch.randn(gpu.card.l2_bytes // 16, device="cuda")
    compiled = torch.compile(lambda x: x.mul_(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled(x)
    assert torch.cuda.max_memory_allocated() - before == gpu.card.l2_bytes + 2 * x.nbytes


@planned
def test_a_reduction_that_times_configurations_does_so_without_triton(gpu):
    """Inductor's own kind of configuration is made of Triton's, which a CPU build has not."""
    x = torch.randn(1 << 15, 64, device="cuda")
    compiled = torch.compile(lambda x: (x * x).sum(-1))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = compiled(x)
    assert torch.cuda.max_memory_allocated() - before == out.nbytes + gpu.card.l2_bytes


def test_a_program_resets_the_compiler_before_anything_is_compiled():
    program = (
        "import torch; from nbmem import virtual\n"
        "with virtual.activated('T4'): torch._dynamo.reset(); torch._dynamo.reset()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, env=os.environ)


@planned
def test_a_region_that_is_captured_again_is_planned(gpu):
    def scaled(x, share):
        return nn.functional.dropout(x, share) * share

    compiled = torch.compile(scaled, dynamic=True)
    for share in (0.5, 0.25):  # a number that Dynamo takes for a symbol, and dropout does not
        compiled(square(), share)
    assert gpu.notes == []


@planned
def test_a_region_pins_what_it_makes_on_the_host_for_the_card(gpu):
    @torch.compile
    def lookup(x):
        ahead = torch.arange(4, pin_memory=True)
        return x[ahead.to("cuda", non_blocking=True)] * 2, ahead

    out, ahead = lookup(square())
    assert (out.shape, ahead.is_pinned(), gpu.notes) == ((4, SIDE), True, [])


@planned
def test_regions_break_are_compiled_again_and_cast(gpu):
    layer = nn.Linear(SIDE, SIDE, bias=False, device="cuda")

    def broken(x):
        y = layer(x).relu()
        torch._dynamo.graph_break()
        return y.sin()

    compiled = torch.compile(broken)
    for rows in (SIDE, SIDE // 2, SIDE // 4):  # the second has sizes of its own, the third any
        assert compiled(square()[:rows]).size() == (rows, SIDE)
    with torch.autocast("cuda", torch.bfloat16):
        half = compiled(square())
    assert half.dtype is torch.bfloat16
    half.sum().backward()
    assert layer.weight.grad.size() == (SIDE, SIDE)
    assert gpu.notes == []


@planned
def test_an_image_in_channels_last_is_pooled_to_one_pixel_in_a_region(gpu):
    def pooled(x):
        return torch.nn.functional.adaptive_avg_pool2d(x * 2, 1) + 1

    x = torch.randn(2, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    result = torch.compile(pooled)(x.requires_grad_())
    result.sum().backward()
    assert (result.stride(), list(gpu.notes)) == (pooled(x).stride(), [])


@planned
@pytest.mark.parametrize("name", ["silu", "mish"])
def test_backward_in_a_region_computes_what_is_a_kernel_on_cuda_in_float32(gpu, name):
    """Composed of others, as C++ would for the device that it sees, it would stay in bfloat16."""
    wide = []

    def look(graph):
        wide.extend(n.meta["val"].dtype for n in graph.nodes if n.target is ops.sigmoid.default)

    ops = torch.ops.aten
    x = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch._inductor.config.patch(post_grad_custom_post_pass=look):
        torch.compile(getattr(torch.nn.functional, name))(x).sum().backward()
    assert set(wide) == {torch.float32}


@planned
def test_a_checkpoint_inside_saves_its_input(gpu):
    layers = nn.Sequential(nn.Linear(SIDE, SIDE), nn.Dropout(0.1), nn.Linear(SIDE, SIDE)).cuda()
    compiled = torch.compile(lambda x: checkpoint(layers, x, use_reentrant=False))
    x = square()
    for _ in range(2):
        out = compiled(x)
        held = torch.cuda.memory_allocated()
        out.sum().backward()
        layers.zero_grad()
        del out
    assert held - torch.cuda.memory_allocated() <= BYTES + 4096  # the result, and a state
    assert gpu.notes == []


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: compiled_before, id="before the card was switched on"),
        pytest.param(lambda: torch.compile(double), id="as a function"),
        pytest.param(lambda: torch.compile(mode="max-autotune")(double), id="as a decorator"),
        pytest.param(lambda: torch.compile(double, fullgraph=True, dynamic=True), id="fullgraph"),
    ],
)
def test_every_way_to_compile_runs(gpu, function):
    assert train(function()) > 0


def test_another_backend_runs_eagerly_and_says_so(gpu):
    assert train(torch.compile(double, backend="aot_eager")) == train(double)
    assert COMPILE in gpu.notes


@planned
def test_what_cannot_be_planned_runs_eagerly_and_says_why(gpu, monkeypatch, caplog):
    from torch._inductor import graph

    def fails(*_):
        raise AssertionError("no such plan")

    monkeypatch.setattr(graph.GraphLowering, "run", fails)
    with pytest.warns(virtual.NbmemWarning, match="chain.*no such plan") as told:
        assert train(torch.compile(chain, fullgraph=True)) == train(chain)
    assert [w.filename for w in told if w.category is virtual.NbmemWarning] == [__file__]
    assert "cache dir" not in caplog.text


@planned
def test_eager_mode_alone_says_nothing(gpu):
    train(torch.compiler.disable(double))
    assert COMPILE not in gpu.notes


def test_inductor_is_not_imported_before_something_is_compiled():
    code = (
        "import sys, torch; from nbmem import virtual; virtual.activate('L4'); "
        "compiled = torch.compile(torch.relu, mode='reduce-overhead'); "
        "print('torch._inductor.compile_fx' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@planned
def test_nothing_is_left_of_a_plan(tmp_path, monkeypatch):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    before = config.get_config_copy()
    compiled = torch.compile(double)
    for card in ("L4", "T4"):
        with virtual.activated(card):
            compiled(square())
    assert config.get_config_copy() == before
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_models_and_optimizers_are_compiled_in_every_way(gpu):
    wrapped = torch.compile(torch.nn.Linear(8, 8).cuda())
    in_place = torch.nn.Linear(8, 8).cuda()
    in_place.compile()
    optimizer = torch.optim.AdamW([*wrapped.parameters(), *in_place.parameters()])
    step = torch.compile(optimizer.step)
    for _ in range(2):
        torch.compiler.cudagraph_mark_step_begin()
        in_place(wrapped(torch.randn(4, 8, device="cuda"))).sum().backward()
        step()
    assert list(wrapped.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    assert len(optimizer.state) == 4


def test_flex_attention_is_captured_where_tensors_have_a_default_device(gpu):
    """Dynamo follows what gives them that device, functions that torch keeps a set of included."""
    from torch.nn.attention.flex_attention import flex_attention

    with torch.device("cuda"):
        q, k, v = (torch.randn(1, 1, 128, 16) for _ in range(3))
        out = torch.compile(flex_attention)(q, k, v)

    assert out.device.type == "cuda"
    assert gpu.notes == []


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_writes_no_scores(gpu):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    size, rows = (2, 4, 256, 64), 2 * 4 * 256
    q, k, v = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
    )
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    compiled = torch.compile(flex_attention)
    for _ in range(2):  # the first launches time a kernel
        q.grad = k.grad = v.grad = None
        before = torch.cuda.memory_allocated()
        out, row = compiled(
            q, k, v, lambda score, b, h, i, j: score + i - j, block_mask=mask, return_lse=True
        )
        assert out.size() == size
        assert row.size() == size[:-1]
        took = torch.cuda.memory_allocated() - before
        assert took == rows * (2 * 64 + 4 + 4)  # lse is scaled
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        out.backward(torch.empty_like(out))
        out = row = None
    # The output's gradient, scratch rows (torch 2.11 keeps two) and the three gradients.
    scratch = 4 if torch.__version__ >= (2, 13) else 8
    assert torch.cuda.max_memory_allocated() - held == rows * (4 * 2 * 64 + scratch)
    assert q.grad.size() == size


@planned
@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_flex_attention_in_a_region_takes_what_it_takes_on_the_oracle(gpu, capfd, mode):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slope = torch.ones(8, device="cuda", requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cuda")

    def attend(x):
        q, k, v = x.view(2, 512, 3, 8, 64).permute(2, 0, 3, 1, 4)
        out = flex_attention(q, k, v, lambda s, b, h, i, j: s + slope[h] * (i - j), mask)
        return out.transpose(1, 2).reshape(2, 512, 512)

    x = torch.randn(2, 512, 1536, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    given = torch.empty(2, 512, 512, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(attend, mode=mode)
    row, tensor, all_three = 2 * 8 * 512 * 4, 2 * 512 * 512 * 2, x.nbytes
    assert second_run_sizes(lambda: compiled(x).backward(given)) == [
        *(row, row, tensor, -row),  # the scores' sums and largest, the output
        *(32, row, tensor, tensor, tensor, -row, -row),  # of slopes, the scratch row, of q, k, v
        *(all_three, -tensor, -tensor, -tensor, -all_three, -32, -tensor),
    ]
    assert gpu.notes == []
    assert "best_kernel" not in capfd.readouterr().err  # times are not known


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score_mod", [None, lambda score, b, h, i, j: score + (i - j)])
def test_flex_attention_without_a_compiler_writes_all_scores(gpu, score_mod):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.randn(2, 12, 1024, 64, device="cuda", requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 1024, 1024, device="cuda")
    scores = 2 * 12 * 1024 * 1024 * 4
    flex_attention(q, q, q)  # for cuBLAS's workspace
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = flex_attention(q, q, q, score_mod=score_mod, block_mask=mask)
    assert 3 * scores < torch.cuda.max_memory_allocated() - held < 4 * scores
    assert torch.cuda.memory_allocated() - held < scores / 10
    torch.cuda.reset_peak_memory_stats()
    out.sum().backward()
    assert 7 * scores < torch.cuda.max_memory_allocated() - held < 8 * scores
    assert q.grad.size() == q.size()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_whole_graph_that_runs_eagerly_passes_for_compiled(backend):
    with virtual.activated("H100", eager=True):
        layer = torch.compile(nn.Linear(4, 4).cuda(), backend=backend, fullgraph=True)
        for _ in range(2):
            layer(torch.randn(2, 4, device="cuda")).sum().backward()
    assert torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(2)).sum() == 4


def test_the_compiler_is_itself_again_afterwards():
    seen = []
    compiled = torch.compile(double, backend=lambda graph, _inputs: seen.append(graph) or graph)
    torch._dynamo.reset()
    with virtual.activated("L4"):
        with pytest.warns(virtual.NbmemWarning, match="runs eagerly"):
            compiled(torch.ones(2, device="cuda"))
        assert seen == []
    compiled(torch.ones(2))
    assert len(seen) == 1


def test_a_script_may_call_what_stands_in_for_torchs_functions(gpu):
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones([3], device=x.device) + torch.zeros([2, 3], device=x.device)

    result = torch.jit.script(scaled)(torch.ones(2, 3, device="cuda"))
    assert (result.device.type, tuple(result.shape)) == ("cuda", (2, 3))


class Halves(nn.Module):
    """Two layers of one MiB each."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Linear(512, 512, device="cuda") for _ in "12")

    def forward(self, x):
        return self.second(self.first(x))


@planned
@pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without distributed")
@pytest.mark.parametrize("inside", [True, False])
def test_a_region_within_ddp_is_split_at_its_buckets(gpu, monkeypatch, inside):
    """torch's own forward breaks at its reducer: what is captured is the module's, and no more."""
    from torch._dynamo.utils import counters
    from torch._inductor.graph import GraphLowering

    weights = []
    true_run = GraphLowering.run

    def run(self, *inputs):
        weights.append(sum(x.numel() == 512 * 512 for x in inputs))
        return true_run(self, *inputs)

    monkeypatch.setattr(GraphLowering, "run", run)
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    try:
        wrap = nn.parallel.DistributedDataParallel
        model = Halves()
        model = torch.compile(model) if inside else model
        model = wrap(model, bucket_cap_mb=1)
        model = model if inside else torch.compile(model)
        counters.clear()
        for _ in range(2):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert counters["stats"]["unique_graphs"] == 1
    assert len(weights) == 4  # both halves, forward and backward
    assert gpu.notes == []
