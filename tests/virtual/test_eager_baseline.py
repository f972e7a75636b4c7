"""Eager-mode peaks beside a planned run."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbmem import virtual
from nbmem.api import tracing
from nbmem.core.runtime.garbage_collector import without_collector
from nbmem.core.units import format_bytes
from nbmem.virtual import current_machine
from nbmem.virtual.hardware.eager_references import SavedStorages
from nbmem.virtual.patches.compiled.compiler import PLANNED
from nbmem.virtual.patches.eager_baseline import captured_graphs as replayed
from nbmem.virtual.warnings import eager_peak

pytestmark = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")
SIDE = 512
BYTES = SIDE * SIDE * 4
BLOCK = 512
"""The allocator's smallest: a gradient of one number."""


class Net(nn.Module):
    """Two products with fused code between them."""

    def __init__(self, *, saves=False):
        super().__init__()
        self.saves = saves
        self.first, self.second = (nn.Linear(SIDE, SIDE, bias=False) for _ in range(2))

    def half(self, x):
        x = self.first(x)
        for _ in range(4):
            x = torch.tanh(torch.sin(x) * 2)
        return x

    def forward(self, x):
        x = checkpoint(self.half, x, use_reentrant=False) if self.saves else self.half(x)
        return self.second(x).square().mean()


def steps(net, x, loss=lambda result: result, **options):
    """Return the peak of live bytes in three training steps."""
    optimizer = torch.optim.SGD(net.parameters())
    compiled = torch.compile(net, **options) if options.pop("planned", True) else net
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        loss(compiled(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


def peaks(act):
    """Return a program's peaks: eager, planned and estimated."""
    with virtual.activated("T4", eager=True):
        eager = act()
    with virtual.activated("T4") as gpu:
        compiled = act()
        return eager, compiled, gpu.eager_estimate.now()


@pytest.mark.parametrize("saves", [False, True])
def test_training_is_what_eager_mode_takes(saves):
    eager, compiled, estimated = peaks(
        lambda: steps(Net(saves=saves).cuda(), torch.randn(4 * SIDE, SIDE, device="cuda"))
    )
    assert eager - BLOCK <= estimated <= eager
    assert saves or compiled < eager - BYTES


def keeps(x):
    wide = x.repeat(4, 1)
    return wide[1:].flatten().exp().sum()


def names_again(x):
    wide = x.repeat(4, 1)
    wide = wide[1:].flatten()
    return wide.exp().sum()


@pytest.mark.parametrize("function", [keeps, names_again])
def test_a_variable_keeps_its_value_until_it_gets_another(function):
    compiles = torch.compile(function)

    def act():
        x = torch.randn(SIDE, SIDE, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            compiles(x)
        return torch.cuda.max_memory_allocated()

    eager, compiled, estimated = peaks(act)
    assert estimated == eager > compiled


def test_each_size_of_changing_arguments_is_run():
    def act():
        compiled = torch.compile(keeps, dynamic=True)
        xs = [torch.randn(rows, SIDE, device="cuda") for rows in (64, 128, 256)]
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            for x in xs:
                compiled(x)
        return torch.cuda.max_memory_allocated()

    eager, compiled, estimated = peaks(act)
    assert estimated == eager > compiled


def test_the_eager_baseline_leaves_no_trace_on_the_card_or_its_history(monkeypatch):
    def events():
        torch.manual_seed(0)
        with virtual.activated("T4") as gpu:
            torch.cuda.memory._record_memory_history(context=None)
            steps(Net().cuda(), torch.randn(4 * SIDE, SIDE, device="cuda"))
            trace_events = torch.cuda.memory._snapshot()["device_traces"][0]
            drawn = torch.rand(1).item()
            return [(e["action"], e["addr"], e["size"]) for e in trace_events], drawn, gpu.notes

    with_it = events()
    monkeypatch.setattr(replayed.CapturedRegion, "__init__", lambda *_: 1 / 0)
    assert events() == with_it


def test_a_report_states_the_eager_baseline_of_what_it_reports(gpu):
    net, x = Net().cuda(), torch.randn(4 * SIDE, SIDE, device="cuda")
    compiled = torch.compile(net)
    compiled(x.repeat(4, 1)).backward()
    del net.first.weight.grad, net.second.weight.grad
    with tracing.trace("smaller") as trace:
        compiled(x).backward()
    assert eager_peak(gpu.eager_estimate.now()) in trace.report().notes
    with tracing.trace("without a region") as trace:
        x.sum()
    assert not any("torch.compile" in note for note in trace.report().notes)


def test_what_a_region_returns_beside_its_loss_may_be_gone(gpu):
    net, x = Net().cuda(), torch.randn(SIDE, SIDE, device="cuda")

    @torch.compile
    def trace_events(x):
        wide = net.half(x).repeat(8, 1)
        return wide.square().mean(), wide

    trace_events(x)[0].backward()
    assert gpu.eager_estimate.beside == 8 * BYTES
    low, high = (format_bytes(gpu.eager_estimate.now() - part) for part in (8 * BYTES, 0))
    assert f"{low} to {high}" in gpu.eager_estimate.sentences()[0]


def test_cuda_graphs_get_a_note_without_an_eager_figure(gpu):
    x = torch.randn(SIDE, SIDE, device="cuda")
    with tracing.trace("graphs") as trace, torch.no_grad():
        torch.compile(keeps, mode="reduce-overhead")(x)
    assert any("CUDA graphs" in n and "TORCH_COMPILE_DISABLE=1" in n for n in trace.report().notes)


class Block(nn.Module):
    """A block without torch's own Sequential forward."""

    def __init__(self, activation):
        super().__init__()
        width = SIDE // 4
        self.parts = nn.ModuleList([nn.Linear(width, width), nn.Softplus(), activation()])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_blocks_that_are_compiled_one_by_one_are_what_eager_mode_takes(activation):
    """A ReLU keeps its result, a GELU its argument; the plan keeps others of what is between."""

    def act(planned):
        blocks = [Block(activation) for _ in range(4)]
        net, x = nn.Sequential(*blocks).cuda(), torch.randn(4 * SIDE, SIDE // 4, device="cuda")
        for block in blocks[1:] if planned else ():
            block.compile()
        return steps(net, x, planned=False, loss=torch.sum)

    with virtual.activated("T4", eager=True):
        eager = act(planned=False)
    with virtual.activated("T4") as gpu:
        compiled = act(planned=True)
        assert gpu.eager_estimate.now() == eager != compiled
        assert gpu.eager_estimate.sentences() == [eager_peak(eager)]


def test_what_the_plan_alone_keeps_may_be_the_programs_and_what_eager_mode_alone_keeps_is_more():
    class Storage:
        def __init__(self, cdata):
            self.cdata, self.gone = cdata, False

        def expired(self):
            return self.gone

    mine, plans, both = Storage(1), Storage(2), Storage(3)
    lasting = SavedStorages()
    end = lasting.hold(kept=[(mine, 10), (both, 1)], planned=[(plans, 100), (both, 1)])
    again = lasting.hold(kept=[(mine, 10)], planned=[])
    assert (lasting.eager_only_bytes, lasting.uncertain_bytes) == (0, 0)
    lasting.mark_used([mine, plans, both])
    assert (lasting.eager_only_bytes, lasting.uncertain_bytes) == (0, 100)
    mine.gone = True
    assert (lasting.eager_only_bytes, lasting.uncertain_bytes) == (10, 100)
    end()
    assert (lasting.eager_only_bytes, lasting.uncertain_bytes) == (10, 0)
    again()
    assert (lasting.eager_only_bytes, lasting.uncertain_bytes) == (0, 0)


def test_a_compiled_optimizer_takes_what_its_own_step_does():
    def act(planned):
        net = nn.Linear(SIDE, SIDE).cuda()
        optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
        step, x = optimizer.step, torch.randn(2, SIDE, device="cuda")
        step = torch.compile(step) if planned else step
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            net(x).sum().backward()
            step()
            optimizer.zero_grad()
        return torch.cuda.max_memory_allocated()

    with virtual.activated("T4", eager=True):
        eager = act(planned=False)
    with virtual.activated("T4") as gpu:
        assert act(planned=True) < eager
        assert gpu.eager_estimate.sentences() == [eager_peak(eager)]


def test_a_region_that_does_not_run_alone_costs_a_sentence(gpu, monkeypatch):
    monkeypatch.setattr(replayed._Replay, "run", lambda *_: 1 / 0)
    x = torch.randn(SIDE, SIDE, device="cuda", requires_grad=True)
    torch.compile(keeps)(x).backward()
    assert "ZeroDivisionError" in gpu.eager_estimate.sentences()[0]
    assert gpu.allocator is gpu.eager_estimate._gpu.allocator
    assert x.grad.shape == x.shape
    assert format_bytes(0) not in gpu.eager_estimate.sentences()[0]


def test_what_a_compiled_optimizer_held_goes_with_it_and_waits_for_no_collection(gpu):
    weight = nn.Parameter(torch.zeros(SIDE, SIDE, device="cuda"))
    weight.grad = torch.zeros_like(weight)
    held = {"optimizer": torch.optim.Adam([weight])}
    before = torch.cuda.memory_allocated()

    @torch.compile
    def step():
        held["optimizer"].step()

    without_collector(step)
    kept = torch.cuda.memory_allocated() - before
    held.clear()
    left = torch.cuda.memory_allocated() - before

    assert kept >= 2 * BYTES
    assert left == 0


def test_a_region_that_is_not_run_again_holds_nothing_of_the_programs(gpu):
    def capture():
        layer = torch.fx.symbolic_trace(nn.Linear(SIDE, SIDE, device="cuda"))
        return replayed.CapturedRegion(layer, [torch.zeros(SIDE, SIDE, device="cuda")])

    before = torch.cuda.memory_allocated()
    captured = without_collector(capture)
    held = torch.cuda.memory_allocated() - before
    captured.forget()
    assert held > BYTES
    assert torch.cuda.memory_allocated() == before


def test_what_is_timed_while_a_region_is_planned_is_not_taken_in_eager_mode():
    """The last products are timed beside padded ones, on copies that nobody would make."""
    long, odd = 2708, 1433

    def act():
        left, right = torch.randn(long, odd, device="cuda"), torch.randn(odd, 16, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        run = torch.compile(lambda x, y: (x @ y).relu())
        for _ in range(2):
            run(left, right)
        return torch.cuda.max_memory_allocated()

    eager, compiled, estimated = peaks(act)

    assert estimated == eager
    assert compiled - eager > long * odd * 4


def test_another_thread_reads_the_programs_cards_meanwhile():
    """A sampler compares torch's counters with NVML's, which are of the program's cards."""
    with virtual.activated("T4"):
        machine = current_machine.machine()
        held = torch.empty(4096, dtype=torch.uint8, device="cuda")
        read: list[tuple[int, int]] = []

        def sample():
            stats = torch._C._cuda_memoryStats(0)
            read.append((stats["requested_bytes"]["all"]["current"], torch.cuda.mem_get_info()[1]))

        sample()
        machine.replace([replayed._empty(gpu) for gpu in machine.gpus])
        try:
            thread = threading.Thread(target=sample)
            thread.start()
            thread.join()
            sample()
        finally:
            machine.restore()
        sample()
        before, other, own, after = read
        assert before == other == after
        assert before[0] == held.nbytes
        assert own[0] == 0
