"""The recorder in training loops on the virtual card."""

import contextlib
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.capture.hooks.training_hooks import TrainingHooks
from nbmem.capture.record.recording import users_time
from nbmem.capture.torch_memory.allocator_history import HistoryProbe
from nbmem.core.session.categories import Category
from tests.capture.phase_texts import phase_text, steps
from tests.fake_clock import put_clock

C = Category


@pytest.fixture(autouse=True)
def card():
    with virtual.activated("H100 80GB") as gpu:
        yield gpu


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def batch():
    return torch.randn(16, 3, 32, 32).cuda(), torch.randint(0, 10, (16,)).cuda()


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def rows(report, name):
    return [p for p in report.phases if p.name == name]


def faults(report):
    """Return the notes, without the one on saved tensors."""
    known = why_unreadable()
    return [note for note in report.notes if known is None or known not in note]


def test_a_plain_loop_to_the_byte():
    with nbmem.trace("train", namespace={}) as t:
        model = network().cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    report = t.report()
    assert phase_text(report.phases) == steps("input forward backward optimizer zero_grad", "load")
    weights = bytes_of(model.parameters())
    after_step = rows(report, "optimizer")[0].ledger_at_end
    assert after_step[C.WEIGHTS] == after_step[C.GRADIENTS] == weights
    assert after_step[C.BUFFERS] == bytes_of(model.buffers())
    state = [v for s in optimizer.state.values() for v in s.values() if v.is_cuda]
    assert after_step[C.OPTIMIZER_STATE] == bytes_of(state)
    assert rows(report, "forward")[1].ledger_at_end[C.INPUTS] == bytes_of((x, y))
    assert rows(report, "zero_grad")[0].ledger_at_end[C.GRADIENTS] == 0
    assert report.ledger_at_peak[C.UNKNOWN] == 0
    assert not faults(report)


def test_the_counters_are_the_users():
    model = network().cuda()
    torch.cuda.reset_peak_memory_stats()
    model(batch()[0])
    before = torch.cuda.max_memory_allocated()
    with nbmem.trace("idle", namespace={}):
        pass
    assert torch.cuda.max_memory_allocated() == before
    with nbmem.trace("reset", namespace={}) as t:
        model(batch()[0])
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        model(batch()[0])
    assert t.report().peak.allocated >= torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("inside", [False, True])
def test_a_reset_of_the_sums_before_it_hides_nothing_that_was_there(inside):
    kept = torch.zeros(5_000, device="cuda")
    with nbmem.trace("resets", namespace={}) if inside else contextlib.nullcontext():
        torch.cuda.reset_accumulated_memory_stats()
    with nbmem.trace("next", namespace={"kept": kept}) as t:
        torch.zeros(1_000, device="cuda")
    report = t.report()
    assert not faults(report)
    assert report.ledger_at_end[C.USER_TENSORS] == kept.nbytes
    assert report.peak.allocated == torch.cuda.memory_allocated() + 4_096


def test_every_reading_agrees_with_the_history():
    with nbmem.trace("train", namespace={}) as t:
        model = network().cuda()
        model(batch()[0]).sum().backward()
        torch.cuda.empty_cache()
    counter_samples = t.session.devices[0].counter_samples
    assert len(counter_samples) > 4
    assert counter_samples.allocated[-1] == torch.cuda.memory_allocated()
    assert counter_samples.reserved[-1] == torch.cuda.memory_reserved()
    assert not faults(t.report())


def test_what_the_driver_keeps_belongs_to_no_other_process(tmp_path, card):
    with nbmem.trace("alone") as t:
        torch.zeros(8, device="cuda")
    for report in (t.report(), nbmem.open(t.save(tmp_path / "alone.nbmem")).report()):
        kept = card.card.nvml_total - card.card.total_bytes + card.card.unowned_with(1)
        assert report.ledger_at_end[C.DRIVER] == kept
        assert report.ledger_at_end[C.OTHER_PROCESSES] == 0


def test_mixed_precision_with_a_scaler():
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    with nbmem.trace("amp", namespace={"model": model}) as t:
        for _ in range(2):
            x, y = batch()
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    report = t.report()
    assert [p.step for p in rows(report, "optimizer")] == [0, 1]
    assert rows(report, "optimizer")[0].ledger_at_end[C.OPTIMIZER_STATE] == bytes_of(
        model.parameters()
    )


def test_two_models_and_two_optimizers():
    generator, critic = nn.Linear(64, 256).cuda(), nn.Linear(256, 1).cuda()
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())
    with nbmem.trace("gan", namespace={"generator": generator, "critic": critic}) as t:
        for _ in range(2):
            z = torch.randn(32, 64, device="cuda")
            fake = generator(z)
            loss = critic(torch.randn(32, 256, device="cuda")).mean() - critic(fake.detach()).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            second.zero_grad()
            critic(fake).mean().backward()
            second.step()
    report = t.report()
    assert [p.step for p in rows(report, "optimizer")] == [0, 0, 1, 1]
    both = bytes_of([*generator.parameters(), *critic.parameters()])
    assert report.ledger_at_end[C.WEIGHTS] == both
    assert rows(report, "optimizer")[1].ledger_at_end[C.GRADIENTS] == both


def test_evaluation_between_steps_is_inference():
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nbmem.trace("both", namespace={"model": model}) as t:
        for _ in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(batch()[0])
    assert phase_text(t.report().phases) == steps(
        "input forward backward optimizer zero_grad input inference"
    )


@pytest.mark.parametrize("zero_grad_at", ["head", "tail"])
def test_an_update_by_hand_that_allocates_nothing_is_an_optimizers(zero_grad_at):
    model, live = network().cuda(), []
    with nbmem.trace("hand", namespace={"model": model}) as t:
        hook_events = nbmem.running_recorder().hook_events
        for _ in range(3):
            x, y = batch()
            if zero_grad_at == "head":
                model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            live.append(hook_events.step_now())
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(p.grad, alpha=-0.1)
            if zero_grad_at == "tail":
                model.zero_grad()
    once = "input zero_grad forward backward optimizer"
    if zero_grad_at == "tail":
        once = "input forward backward optimizer zero_grad"
    report = t.report()
    assert phase_text(report.phases) == steps(once, count=3)
    assert live == [0, 1, 2]
    (first, *_) = rows(report, "optimizer")
    assert first.peak_allocated == first.allocated_before
    assert rows(report, "input")[1].ledger_at_end[C.INPUTS] >= bytes_of(batch())


def test_loops_without_an_optimizer_count_as_the_report_does():
    model, counted = nn.Linear(8, 8).cuda(), []
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        hook_events = nbmem.running_recorder().hook_events
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 8, device="cuda"))
            counted.append(hook_events.step_now())
    assert counted == [p.step for p in trace.report().phases if p.name == "inference"] == [0, 1, 2]
    counted.clear()
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        hook_events = nbmem.running_recorder().hook_events
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
            counted.append(hook_events.step_now())
    assert counted == [p.step for p in trace.report().phases if p.name == "backward"] == [0, 1, 2]


def test_gradients_that_are_only_looked_at_update_nothing():
    model = network().cuda()
    with nbmem.trace("saliency", namespace={"model": model}) as t:
        for _ in range(2):
            x = batch()[0].requires_grad_()
            model(x).sum().backward()
            x.grad.abs_()
            model.zero_grad()
    assert not rows(t.report(), "optimizer")


def test_a_transform_of_the_data_set_is_no_forward():
    """torchvision's are modules, and a loader without workers calls them in the loop."""
    normalize, criterion = nn.LayerNorm(32, elementwise_affine=False), nn.CrossEntropyLoss()
    model = network()
    with nbmem.trace("both", namespace={"model": model}) as t:
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            x = torch.stack([normalize(torch.zeros(3, 32, 32)) for _ in range(16)]).cuda()
            y = torch.randint(0, 10, (16,)).cuda()
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    assert phase_text(t.report().phases) == steps(
        "input zero_grad forward backward optimizer", "load"
    )


@pytest.mark.parametrize("chosen", [True, False])
def test_what_runs_on_the_host_is_no_phase_of_the_card(chosen):
    """SimCLR blurs its pictures with convolutions; YOLO measures its strides before it moves."""
    for card in virtual.gpus():
        card.chosen = chosen  # else the host's memory is followed until a card is used
    blur, model = nn.Conv2d(3, 3, 3, bias=False), network()
    with nbmem.trace("both", namespace={"model": model}) as t:
        model(torch.zeros(1, 3, 32, 32))
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            with torch.no_grad():
                x = torch.stack([blur(torch.zeros(3, 34, 34)) for _ in range(16)]).cuda()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert phase_text(t.report().phases) == steps(
        "input zero_grad forward backward optimizer", "load"
    )


def test_the_cards_steps_begin_where_it_is_used():
    """Nobody has chosen the card, so the host is followed until then: it trains first."""
    for card in virtual.gpus():
        card.chosen = False
    model = network()
    with nbmem.trace("both", namespace={"model": model}) as t:
        for device in ("cpu", "cuda"):
            model.to(device)
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(2):
                loss = model(torch.zeros(4, 3, 32, 32, device=device)).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    names = "input forward zero_grad backward optimizer"
    assert phase_text(t.report().phases) == steps(names, "load")


def test_checkpointing_shows_as_recompute():
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)).cuda()

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    model = Deep()
    with nbmem.trace("deep", namespace={"model": model}) as t:
        model(torch.randn(512, 256, device="cuda", requires_grad=True)).sum().backward()
    report = t.report()
    assert len(rows(report, "recompute")) == 3
    assert all(p.depth == 1 for p in rows(report, "recompute"))


def test_an_exception_in_the_middle_loses_nothing():
    model = network().cuda()

    def cell():
        model(batch()[0]).sum().backward()
        return 1 / 0

    t = nbmem.trace("bad", namespace={"model": model})
    with pytest.raises(ZeroDivisionError), t:
        cell()
    report = t.report()
    assert report.error == "ZeroDivisionError: division by zero"
    assert phase_text(report.phases).endswith("forward0 backward0")


def test_an_exception_inside_a_forward_or_backward_leaves_the_hooks_in_order():
    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError(x.shape)

    model = network().cuda()
    with nbmem.trace("bad", namespace={"model": model}) as t:
        with pytest.raises(ValueError, match="16"):
            Bad()(batch()[0])
        with pytest.raises(RuntimeError, match="scalar outputs"):
            model(batch()[0]).backward()
        model(batch()[0]).sum().backward()
    assert phase_text(t.report().phases).count("backward") == 1
    assert not faults(t.report())


def test_a_traceback_has_no_frame_of_ours():
    import traceback

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, _grad):
            raise RuntimeError("in backward")

    weight = torch.ones(4, requires_grad=True)

    def frames(*, traced):
        trace = nbmem.trace("t", namespace={})
        if traced:
            trace.start()
        try:
            Fails.apply(weight).sum().backward()
        except RuntimeError as err:
            return [(f.filename, f.name) for f in traceback.extract_tb(err.__traceback__)]
        finally:
            trace.stop()

    assert frames(traced=True) == frames(traced=False)


def test_everything_is_undone():
    modules = torch.nn.modules.module
    import importlib

    graph = torch.autograd.graph
    optim = importlib.import_module("torch.optim.optimizer")

    def state():
        return (
            dict(modules._global_forward_pre_hooks),
            dict(modules._global_forward_hooks),
            dict(optim._global_optimizer_pre_hooks),
            dict(optim._global_optimizer_post_hooks),
            graph.log,
            graph._register_logging_hooks_on_whole_graph,
            torch.optim.Optimizer.__dict__["zero_grad"],
            nn.Module.__dict__["zero_grad"],
            [th.name for th in threading.enumerate()],
        )

    before = state()
    model = network().cuda()
    with nbmem.trace("t", namespace={}):
        model(batch()[0]).sum().backward()
    assert state() == before
    assert not any(m._forward_hooks for m in model.modules())


def test_a_users_history_is_joined_and_left_on():
    torch.cuda.memory._record_memory_history(max_entries=1000, context=None)
    kept = torch.empty(1 << 20, device="cuda")
    with nbmem.trace("t", namespace={"kept": kept}) as t:
        torch.empty(1 << 21, device="cuda")
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(None)
    report = t.report()
    assert report.ledger_at_start[C.USER_TENSORS] == kept.numel() * 4
    assert report.peak.allocated == kept.numel() * 4 + (1 << 23)


def test_a_full_ring_is_counted_and_said():
    from nbmem.capture.record.recorder import Recorder
    from nbmem.report.analysis import build_report

    model = network().cuda()
    recorder = Recorder(namespace={"model": model}, max_events=100, engine="rules", chosen=True)
    recorder.start()
    for _ in range(5):
        model(batch()[0]).sum().backward()
    recorder.close()
    session = recorder.freeze("long")
    report = build_report(session)
    assert report.events <= 100
    assert report.dropped_events > 0
    assert any("were dropped" in note for note in report.notes)
    report.ledger_at_end.check(
        allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved()
    )


def test_a_trace_inside_a_trace_is_a_block():
    model = network().cuda()
    with nbmem.trace("outer", namespace={"model": model}) as outer:
        with nbmem.trace("inner") as inner, nbmem.phase("mine"):
            model(batch()[0])
        assert "traced inside 'outer'" in str(inner)
    names = {p.name for p in outer.report().phases}
    assert {"inner", "mine"} <= names


def test_threads_that_allocate_are_in_the_ledger():
    with nbmem.trace("threads", namespace={}) as t:
        kept = []
        thread = threading.Thread(target=lambda: kept.append(torch.zeros(1 << 20, device="cuda")))
        thread.start()
        thread.join()
    if kept[0].is_cuda:
        t.report().ledger_at_end.check(allocated=torch.cuda.memory_allocated())


def test_a_probe_that_fails_leaves_one_note(monkeypatch):
    from nbmem.capture.record.hook_event_log import HookEventLog

    def broken(*_args, **_kwargs):
        raise KeyError("broken probe")

    monkeypatch.setattr(HookEventLog, "backward_begins", broken)
    model = network().cuda()
    with nbmem.trace("t", namespace={"model": model}) as t:
        for _ in range(2):
            model(batch()[0]).sum().backward()
    notes = [n for n in t.session.notes if "broken probe" in n]
    assert len(notes) == 1
    assert "The cell itself is not affected" in notes[0]


def test_nothing_is_kept_alive():
    import weakref

    with nbmem.trace("t", namespace={}) as t:
        model = network().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    refs = [weakref.ref(model), weakref.ref(x), weakref.ref(optimizer)]
    held = torch.cuda.memory_allocated()
    del model, optimizer, x, y
    assert torch.cuda.memory_allocated() < held
    assert [r() for r in refs] == [None, None, None]
    assert t.report().events


def test_a_cell_without_a_card_says_what_to_do():
    with nbmem.trace("nothing", namespace={}) as t:
        torch.ones(3)
    assert "nothing has no report" in str(t)


def test_kept_tensors_are_the_users():
    model = network().cuda()
    history = []
    namespace = {"model": model, "history": history}
    with nbmem.trace("t", namespace=namespace) as t:
        for _ in range(3):
            out = model(batch()[0])
            out.sum().backward()
            history.append(out.detach())
    assert t.report().ledger_at_end[C.USER_TENSORS] == 3 * 16 * 10 * 4


def test_what_nbmem_takes_is_not_in_the_users_time(monkeypatch):
    """The clock stands still but for nbmem's own work, and a second of the user's."""
    now = [10**18]
    put_clock(monkeypatch, time_ns=lambda: now[0])

    def slow(run):
        def slower(*args, **kwargs):
            now[0] += 10**9
            return run(*args, **kwargs)

        return slower

    monkeypatch.setattr(HistoryProbe, "take", slow(HistoryProbe.take))
    monkeypatch.setattr(TrainingHooks, "install", slow(TrainingHooks.install))
    monkeypatch.setattr(TrainingHooks, "remove", slow(TrainingHooks.remove))
    with nbmem.trace("t", namespace={}) as t:
        kept = torch.ones(1, device="cuda")
        now[0] += 10**9
    assert kept.is_cuda
    cell, load = t.session.spans
    assert [span.t1_ns - span.t0_ns for span in (cell, load)] == [10**9, 10**9]
    assert t.report().duration_ns == 10**9
    assert t.report().timeline.t_ns.max() <= 10**9


def test_what_a_notebook_does_at_both_ends_is_not_the_cells_time(monkeypatch):
    now = [10**18]
    put_clock(monkeypatch, time_ns=lambda: now[0])
    t = nbmem.trace("t", namespace={}).start()
    now[0] += 10**9  # the line under the cell, the sidebar
    users_time(begins=True)
    kept = torch.ones(1, device="cuda")
    now[0] += 10**9
    users_time(begins=False)
    now[0] += 10**9  # the history's line
    t.stop()
    assert kept.is_cuda
    assert t.report().duration_ns == 10**9
    assert [span.t1_ns - span.t0_ns for span in t.session.spans] == [10**9, 10**9]


def test_a_trace_inside_another_leaves_the_outer_ones_time_alone():
    with nbmem.trace("outer", namespace={}) as outer, nbmem.trace("inner"):
        began = outer._recording.recorder.began_ns
        users_time(begins=True)
        users_time(begins=False)
        assert outer._recording.recorder.began_ns == began
        assert outer._recording.recorder.ended_ns is None
