"""torch.compile on a virtual card: everything that is compiled runs, with eager mode's memory."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="the virtual card answers torch")


from nbmem import virtual
from nbmem.virtual.notes import COMPILE


def double(x):
    return (x * 2).relu()


compiled_before = torch.compile(double, mode="reduce-overhead", fullgraph=True)


def train(function):
    """Peak bytes of one pass forward and backward."""
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    function(x).sum().backward()
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: compiled_before, id="before the card was switched on"),
        pytest.param(lambda: torch.compile(double), id="as a function"),
        pytest.param(lambda: torch.compile(mode="max-autotune")(double), id="as a decorator"),
        pytest.param(lambda: torch.compile(double, fullgraph=True, dynamic=True), id="fullgraph"),
        pytest.param(lambda: torch.compile(double, backend="aot_eager"), id="another backend"),
    ],
)
def test_a_compiled_function_takes_what_eager_mode_takes_and_says_so(gpu, function):
    assert train(function()) == train(double)
    assert COMPILE in gpu.notes


def test_eager_mode_alone_says_nothing(gpu):
    train(torch.compiler.disable(double))
    assert COMPILE not in gpu.notes


def test_inductor_is_not_even_imported():
    code = (
        "import sys, torch; from nbmem import virtual; virtual.activate('L4'); "
        "torch.compile(torch.relu)(torch.ones(2, device='cuda')); "
        "print('torch._inductor.compile_fx' in sys.modules)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_writes_no_scores(gpu):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    size, rows = (2, 4, 256, 64), 2 * 4 * 256
    q, k, v = (
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"
    )
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    before = torch.cuda.memory_allocated()
    out, row = torch.compile(flex_attention)(
        q, k, v, lambda score, b, h, i, j: score + i - j, block_mask=mask, return_lse=True
    )
    assert out.size() == size
    assert row.size() == size[:-1]
    assert torch.cuda.memory_allocated() - before == rows * (2 * 64 + 4 + 4)  # lse is scaled
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    out.backward(torch.empty_like(out))
    # The output's gradient, a scratch row and the three gradients.
    assert torch.cuda.max_memory_allocated() - held == rows * (4 * 2 * 64 + 4)
    assert q.grad.size() == size


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
