"""Parts of a model's weights: adapters, base, quantized weights and their constants."""

import pytest
import torch

import nbmem
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import MAX_PARTS, parts_by_name
from nbmem.report.ledger.card_ledger import CardLedger

nn = torch.nn
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]


class Int8(nn.Module):
    """A layer with an int8 weight, whose scales are an attribute."""

    def __init__(self):
        super().__init__()
        weight = torch.zeros(256, 256, dtype=torch.int8, device="cuda")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.state = {"SCB": torch.ones(256, 4, device="cuda")}

    def forward(self, x):
        return x @ (self.weight.to(x.dtype) * self.state["SCB"][:, :1]).T


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(256, 8, bias=False, device="cuda")
        self.lora_B = nn.Linear(8, 256, bias=False, device="cuda")

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


def weights_of(model):
    with nbmem.trace("cell") as trace:
        model(torch.zeros(2, 256, device="cuda")).sum().backward()
    ledger = CardLedger(trace.session).ledgers([0])[0]
    parts = dict(ledger.parts_of(Category.WEIGHTS))
    assert not parts or sum(parts.values()) == ledger[Category.WEIGHTS]
    return parts, ledger[Category.WEIGHTS]


def test_adapters_and_a_quantized_base_with_its_constants():
    plain = nn.Linear(256, 256, bias=False, device="cuda").requires_grad_(requires_grad=False)
    model = nn.Sequential(Adapted(Int8()), Adapted(plain))
    parts, _ = weights_of(model)
    assert parts == {
        "adapters": 2 * 2 * 8 * 256 * 4,
        "base": 256 * 256 * 4,
        "base 8-bit": 256 * 256 + 256 * 4 * 4,
    }


def test_a_frozen_backbone_and_a_trained_head():
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 16, bias=False)).cuda()
    model[0].requires_grad_(requires_grad=False)
    parts, _ = weights_of(model)
    assert parts == {"frozen": 256 * 256 * 4, "trained": 256 * 16 * 4}


def test_weights_that_are_all_alike_have_no_parts():
    parts, whole = weights_of(nn.Linear(256, 16, bias=False).cuda())
    assert (parts, whole) == ({}, 256 * 16 * 4)


def test_weights_that_are_frozen_later_have_parts_then():
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 16, bias=False)).cuda()
    assert weights_of(model)[0] == {}
    model[0].requires_grad_(requires_grad=False)
    assert set(weights_of(model)[0]) == {"frozen", "trained"}


def test_a_file_with_too_many_parts_is_read_in_part():
    parts = [{"name": f"part {n}", "names": [n]} for n in range(10_000)]
    assert len(parts_by_name({"parts": parts})) == MAX_PARTS


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 32)
        self.head = nn.Linear(32, 1000, bias=False)

    def forward(self, ids):
        return self.head(self.embed(ids))


def test_logits_are_a_part_of_the_activations():
    model = Words().cuda()
    ids = torch.zeros(4, 16, dtype=torch.long, device="cuda")
    with nbmem.trace("cell") as trace:
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    ledger = CardLedger(trace.session)
    every = ledger.ledgers(range(ledger.events))
    most = max(dict(one.parts_of(Category.ACTIVATIONS)).get("logits", 0) for one in every)
    assert most == 4 * 16 * 1000 * 4
