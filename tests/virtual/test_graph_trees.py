"""Compiled regions as CUDA graph trees.

The figures are those of torch 2.13's CUDA build on the oracle, of the same programs.
"""

import pytest
import torch
from torch import nn

from nbmem.virtual.patches.compiled.compiler import PLANNED
from nbmem.virtual.warnings import on_figures

pytestmark = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")


class Two(nn.Module):
    """Two regions with a break between them."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
        self.b = nn.Linear(256, 128)

    def forward(self, x):
        y = self.a(x)
        torch._dynamo.graph_break()
        return self.b(y.sin()).relu()


def peak_and_held():
    return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()


@pytest.mark.long
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are of torch 2.13's compiler")
def test_steps_of_training_and_of_evaluation_take_what_they_take_on_the_oracle(gpu):
    model = Two().cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(512, 256, device="cuda")
    found = []
    for train in (True, True, True, False, False, False, True, False):
        torch.cuda.reset_peak_memory_stats()
        with torch.set_grad_enabled(train):
            out = compiled(x)
        if train:
            out.sum().backward()
            model.zero_grad()
        del out
        found.append(peak_and_held())
    assert found == [
        (95_953_920, 2_759_168),  # warmed up
        (43_009_024, 2_763_264),  # recorded
        (3_026_432, 2_763_264),  # replayed
        (92_940_800, 2_763_264),
        (38_940_160, 2_765_312),
        (2_765_312, 2_765_312),
        (3_028_480, 2_765_312),
        (2_765_312, 2_765_312),
    ]
    held = []
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        out = compiled(x).clone()
        held.append(out)
        (out.sum() / 2).backward()
    # Another region is to be warmed up: the gradients, which a replay does not count, come back.
    another = torch.compile(lambda q: (q @ q.t()).relu() * 2, mode="reduce-overhead")
    result = another(x)
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert torch.cuda.memory_allocated() >= 2_765_312 + 3 * out.nbytes + gradients + result.nbytes
    assert torch.cuda.memory_reserved() == 117_440_512


def test_a_region_is_warmed_up_and_recorded_and_a_replay_allocates_nothing(gpu):
    x = torch.ones(1 << 20, device="cuda")
    compiled = torch.compile(lambda t: t.sin() + 1, mode="reduce-overhead")
    for _ in range(2):
        out = compiled(x)
        del out
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    addresses = {compiled(x).data_ptr() for _ in range(2)}
    assert len(addresses) == 1
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    out = addresses.pop()
    assert any(s["address"] <= out < s["address"] + s["total_size"] for s in private)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    left = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory_snapshot()}
    assert left == {(0, 0)}
    assert on_figures(gpu.notes) == []


@pytest.mark.parametrize("capturing", [False, True])
def test_attention_leaves_its_seeds_on_the_card_only_in_a_graph(gpu, capturing):
    q = torch.randn(2, 4, 256, 64, device="cuda")

    def attend():
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, q, q, None, compute_log_sumexp=True
        )

    if capturing:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            results = attend()
    else:
        results = attend()
    assert [one.device.type for one in results[2:]] == ["cuda" if capturing else "cpu"] * 2


OVERWRITTEN = {
    # Called seven times; which results can be read afterwards.
    "result": (lambda y: y, [False, False, True, True, True, True, True]),
    "view": (lambda y: y[:3], [False, False, True, True, True, True, True]),
    "copy": (torch.clone, [True] * 7),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_reading_an_overwritten_output_raises_as_on_a_card(gpu, name):
    keep, expected = OVERWRITTEN[name]
    x = torch.ones(64, 64, device="cuda")
    compiled = torch.compile(lambda t: t.sin() + 1, mode="reduce-overhead")
    kept = [keep(compiled(x)) for _ in expected]
    found = []
    for one in kept:
        try:
            one.detach() * 2
        except RuntimeError as err:
            assert "has been overwritten by a subsequent run" in str(err)  # noqa: PT017 - of some
            found.append(False)
        else:
            found.append(True)
    assert found == expected


def test_gradients_of_a_graph_are_not_added_up_as_on_a_card(gpu):
    model = nn.Linear(64, 64).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    x = torch.ones(8, 64, device="cuda")
    compiled(x).sum().backward()
    with pytest.raises(RuntimeError, match="tensor output of CUDAGraphs"):
        compiled(x).sum().backward()
    model.zero_grad()
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x).sum().backward()
        model.zero_grad()
