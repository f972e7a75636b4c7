"""Training loops of many styles, with their phases and steps."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import nbmem.api.tracing as nbmem
from nbmem.capture.record import hook_event_log as turns_module
from nbmem.capture.record.counter_samples import CounterLog
from nbmem.capture.record.hook_event_log import HookEventLog
from nbmem.capture.record.program_log import ProgramLog
from nbmem.capture.record.tensor_labels import TensorLabelLog
from tests.capture.phase_texts import phase_text, phases_of, steps

STEPS = 2
pytestmark = pytest.mark.usefixtures("card")


def network():
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()


def batch():
    return torch.randn(32, 100).cuda(), torch.randint(0, 10, (32,)).cuda()


def by_module():
    model = network()
    for _ in range(STEPS):
        x, y = batch()
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)


def by_data():
    x, y = batch()
    model = network()
    for _ in range(STEPS):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad


def by_data_in_place():
    model = network()
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-0.1)
        for p in model.parameters():
            p.grad.data.zero_()
    return model  # or nobody could ask for it behind the last step


def by_looking_at_data():
    model = network()
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad.data.clamp_(-1, 1)
            p.data.norm()
    return model


def by_reading_gradients():
    model = network()
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        norms = sum((p.grad * 2).square().sum() for p in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), norms)
        for p in model.parameters():
            p.grad = None
    return model


def by_a_function_of_data():
    def update(weight, gradient):
        weight -= 0.1 * gradient

    model = network()
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            update(p.data, p.grad)
            p.grad = None
    return model


class OwnMomentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.moments = [torch.zeros_like(p.data) for p in self.parameters]

    def step(self):
        for p, moment in zip(self.parameters, self.moments, strict=True):
            moment.mul_(0.9).add_(p.grad)
            p.data -= moment
            p.grad = None


def by_momentum_of_their_own():
    model = network()
    optimizer = OwnMomentum(model.parameters())
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


class OwnAdam:
    def __init__(self, parameters):
        self.parameters, self.state = list(parameters), {}

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            if p not in self.state:
                self.state[p] = torch.zeros_like(p), torch.zeros_like(p)
            m, v = self.state[p]
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.sub_(0.1 * m / (v.sqrt() + 1e-8))


def by_an_optimizer_of_their_own():
    model = network()
    optimizer = OwnAdam(model.parameters())
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None


def by_tensors_alone():
    x = torch.randn(64, 100).cuda()
    v, w = (torch.randn(n, m).cuda().requires_grad_() for n, m in ((100, 50), (50, 10)))
    for _ in range(STEPS):
        loss = x.mm(v).clamp(min=0).mm(w).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            v -= 1e-6 * v.grad
            w -= 1e-6 * w.grad
            v.grad.zero_()
            w.grad.zero_()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(100, 10))

    def forward(self, x):
        return (x @ self.w).relu()


def by_forward_itself():
    model = Plain().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model.forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_reentrant_checkpoints():
    blocks = [network() for _ in range(2)]
    head = nn.Linear(20, 10).cuda()
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = torch.randn(32, 100, device="cuda", requires_grad=True), batch()[1]
        h = torch.cat([checkpoint(block, x, use_reentrant=True) for block in blocks], 1)
        optimizer.zero_grad()
        F.cross_entropy(head(h), y).backward()
        optimizer.step()


def by_a_gan():
    g, d = nn.Linear(16, 100).cuda(), nn.Sequential(nn.Linear(100, 1), nn.Sigmoid()).cuda()
    for_g, for_d = (torch.optim.SGD(net.parameters(), 0.1) for net in (g, d))
    loss = nn.BCELoss()
    for _ in range(STEPS):
        real, ones = torch.randn(8, 100).cuda(), torch.ones(8, 1).cuda()
        for_g.zero_grad()
        fake = g(torch.randn(8, 16).cuda())
        loss(d(fake), ones).backward()
        for_g.step()
        for_d.zero_grad()
        (loss(d(real), ones) + loss(d(fake.detach()), ones - 1)).backward()
        for_d.step()


def by_two_alternating_models():
    for _ in range(2):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def by_hooks_of_parameters():
    model = network()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()


PROGRAMS = {
    by_module: steps("input forward backward optimizer", "load"),
    by_data: steps("zero_grad forward backward optimizer", "load"),
    by_data_in_place: steps("input forward backward optimizer", "load"),
    by_looking_at_data: steps("input forward backward", "load"),
    by_reading_gradients: steps("input forward backward", "load"),
    by_a_function_of_data: steps("input forward backward optimizer", "load"),
    by_momentum_of_their_own: steps("input forward backward optimizer", "load"),
    by_an_optimizer_of_their_own: steps("input forward backward optimizer", "load"),
    by_tensors_alone: steps("forward backward optimizer", "load"),
    by_forward_itself: steps("forward zero_grad backward optimizer", "load"),
    by_reentrant_checkpoints: steps("input forward zero_grad forward backward optimizer", "load"),
    by_a_gan: steps(
        "input zero_grad input forward backward optimizer zero_grad forward backward optimizer",
        "load",
    ),
    by_hooks_of_parameters: steps("input forward backward", "load"),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_phases_are_what_a_person_reads(program):
    with nbmem.trace(program.__name__, namespace={}) as t:
        kept = program()
    del kept
    outer = [s for s in phases_of(t) if s.parent == 0]
    assert phase_text(outer) == PROGRAMS[program]
    edges = [edge for s in outer for edge in (s.first[0], s.last[0])]
    assert edges == sorted(edges)
    t.report().ledger_at_peak.check()


def test_a_second_model_has_a_load_and_steps_of_its_own():
    with nbmem.trace("two", namespace={}) as t:
        by_two_alternating_models()
    phases = [(s.name, s.step) for s in phases_of(t)]
    loop = ("input", "zero_grad", "forward", "backward", "optimizer")
    first, second = ([(name, step) for step in two for name in loop] for two in ((0, 1), (2, 3)))
    assert phases == [("load", None), *first, ("load", None), *second]


def test_a_step_in_the_engines_thread_is_told_by_the_thread_that_waits(monkeypatch):
    log = HookEventLog(CounterLog(None), TensorLabelLog(), ProgramLog())
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    def engine():
        monkeypatch.setattr(turns_module, "in_engine", lambda: True)
        log.optimizer_begins(optimizer, closure=False)
        log.optimizer_ends(optimizer)
        log.zero_grad_begins(optimizer)
        log.zero_grad_ends()

    log.backward_begins(())
    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    assert log.phase == "backward"
    log.backward_ends()
    assert {hook_event.thread for hook_event in log.hook_events.part()} == {0}
    kinds = [hook_event.kind for hook_event in log.hook_events.part()]
    assert kinds == ["backward", *["optimizer"] * 2, *["zero_grad"] * 2, "backward"]
