"""Programs, and the names of their tensors in a card's ledger."""

from dataclasses import dataclass

import pytest
import torch

import nbmem
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger

nn, F, C = torch.nn, torch.nn.functional, Category
C_OF_A_MODEL = (C.WEIGHTS, C.GRADIENTS, C.OPTIMIZER_STATE)

MIB = 1 << 20

reads_graphs = pytest.mark.skipif(
    why_unreadable() is not None, reason="this release of torch does not show saved tensors"
)


def network():
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()


def rows(rows=256):
    return torch.randn(rows, 512, device="cuda")


def card_ledger_of(cell, **names):
    """Return the ledger of a cell's recording, with notebook names."""
    with nbmem.trace("cell", namespace=names) as trace:
        cell()
    return CardLedger(trace.session)


def live_bytes(card_ledger, position, least=64 * 1024):
    """Return live bytes at a position by (name, category)."""
    sizes = card_ledger.allocations.requested
    found = {}
    for row in card_ledger.live(position).tolist():
        if sizes[row] >= least:
            key = card_ledger.name(row), C(int(card_ledger.category[row]))
            found[key] = found.get(key, 0) + int(sizes[row])
    return found


def at_end(card_ledger, least=64 * 1024):
    return live_bytes(card_ledger, card_ledger.events, least)


def in_step(card_ledger, phase, step):
    """Return live bytes at a phase's end by name and category."""
    spans = card_ledger.session.spans
    last = next(s.last[0] for s in spans if (s.kind, s.name, s.step) == ("phase", phase, step))
    return live_bytes(card_ledger, last)


class OwnAdam:
    """A user-written optimizer that makes new tensors at each step."""

    def __init__(self, params):
        self.params = list(params)
        self.moments = {}

    def step(self):
        with torch.no_grad():
            for i, p in enumerate(self.params):
                old = self.moments.get(i, torch.zeros_like(p))
                self.moments[i] = 0.9 * old + p.grad
                p.sub_(0.1 * self.moments[i])

    def zero_grad(self):
        for p in self.params:
            p.grad = None


@dataclass
class Batch:
    x: torch.Tensor
    target: torch.Tensor


class Buffer:
    __slots__ = ("store",)

    def __init__(self):
        self.store = rows(2048)


class Parts(nn.Module):
    """A module whose parts are called by themselves, too."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(512, 512), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(512, 1024), nn.ReLU())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def steps_of(run, model, passes=2):
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(passes):
        optimizer.zero_grad()
        run(model, rows()).sum().backward()
        optimizer.step()
    return optimizer


class Policy(nn.Module):
    """A module whose methods call its layers."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Linear(512, 512)

    def act(self, state):
        return self.actor(state)


LIBRARY = """
class Trainer:
    def __init__(self, most):
        self.most, self._loop = most, [object() for _ in range(MANY)]

    def fit(self, pl_module, batch, depth=20):
        if depth:
            self._kept = pl_module
            self.fit(pl_module, batch, depth - 1)
            return
        trainer, optimizer = self, torch.optim.SGD(self._kept.parameters(), 0.1)
        del pl_module
        for _ in range(self.most):
            self._kept(batch).sum().backward()
            optimizer.step()
"""


class Spectral(nn.Module):
    """A module that replaces two buffers at each call."""

    def __init__(self):
        super().__init__()
        self.u = nn.Parameter(torch.randn(1 << 18), requires_grad=False)
        self.weight = nn.Parameter(torch.randn(512, 512))
        self.register_buffer("v", torch.randn(1 << 18))

    def forward(self, x):
        self.u.data = self.u.data / self.u.data.norm()
        self.v = self.v + self.u
        return x @ self.weight
