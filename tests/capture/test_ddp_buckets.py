"""Names of DistributedDataParallel's buckets."""

import os
import time

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger

nn, C = torch.nn, Category
NAME = "model: gradients' buckets"
WEIGHTS = 4 * (1000 * 4000 + 4000 * 1000 + 1000 * 500)
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def world(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setitem(os.environ, "MASTER_PORT", "29577")
    with virtual.activated("A100 80GB"):
        torch.distributed.init_process_group("nccl")
        yield
        torch.distributed.destroy_process_group()


def network(**options):
    layers = (nn.Linear(1000, 4000, bias=False), nn.Linear(4000, 1000, bias=False))
    model = nn.Sequential(*layers, nn.Linear(1000, 500, bias=False)).cuda()
    return nn.parallel.DistributedDataParallel(model, device_ids=[0], **options)


def train(model, steps=3):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(64, 1000, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not virtual.gpus():  # NCCL's watchdog lets go of buckets that were laid anew a bit later
            time.sleep(0.3)


def communication(card_ledger, name, step):
    """Return bytes, blocks and names at the end of a phase."""
    spans = card_ledger.session.spans
    at = next(s.last[0] for s in spans if (s.kind, s.name, s.step) == ("phase", name, step))
    rows = [r for r in card_ledger.live(at).tolist() if card_ledger.category[r] == C.COMMUNICATION]
    sizes = [int(card_ledger.allocations.requested[r]) for r in rows]
    return sum(sizes), len(sizes), {card_ledger.name(r) for r in rows}


@pytest.mark.parametrize("unused", [False, True])
def test_the_buckets_are_communication_in_every_step(unused):
    names = {}
    with nbmem.trace("cell", namespace=names) as trace:
        names["model"] = network(find_unused_parameters=unused)
        ema = {name: p.detach().clone() for name, p in names["model"].named_parameters()}
        train(names["model"])
        del ema
    card_ledger = CardLedger(trace.session)
    assert communication(card_ledger, "backward", 0) == (WEIGHTS, 2 if unused else 1, {NAME})
    assert communication(card_ledger, "backward", 1) == (WEIGHTS, 2, {NAME})
    assert communication(card_ledger, "zero_grad", 2) == (WEIGHTS, 2, {NAME})


def test_those_of_an_earlier_cell_are_known_by_their_sum():
    model = network()
    train(model)
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        train(model)
    assert communication(CardLedger(trace.session), "backward", 0) == (WEIGHTS, 2, {NAME})


def test_gradients_that_are_views_of_the_buckets_stay_gradients():
    model = network(gradient_as_bucket_view=True)
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        train(model)
    report = trace.report()
    assert report.ledger_at_peak[C.COMMUNICATION] == 0
    assert report.ledger_at_peak[C.GRADIENTS] == WEIGHTS


def layers():
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2))).cuda()


def at_the_end_of_forward(model):
    """Return the ledger and bytes by category after a second forward."""
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    card_ledger = CardLedger(trace.session)
    spans = [s for s in trace.session.spans if (s.kind, s.name, s.step) == ("phase", "forward", 1)]
    live = card_ledger.live(spans[0].last[0]).tolist()
    held = {}
    for row in live:
        category = C(int(card_ledger.category[row]))
        held[category] = held.get(category, 0) + int(card_ledger.allocations.requested[row])
    return held, {card_ledger.name(r) for r in live if card_ledger.category[r] == C.COMMUNICATION}


@pytest.mark.skipif(torch.__version__ < "2.11", reason="fully_shard was another one before")
def test_what_fsdp_has_gathered_is_told_from_the_shards():
    from torch.distributed.fsdp import fully_shard

    held, names = at_the_end_of_forward(fully_shard(layers(), reshard_after_forward=False))
    whole = 2 * 512 * 512 * 4
    assert (held[C.WEIGHTS], held[C.OPTIMIZER_STATE]) == (whole // 2, whole)
    assert held[C.COMMUNICATION] == whole
    assert C.UNKNOWN not in held
    assert names == {f"model.{n}.weight gathered (262144,) float32" for n in (0, 1)}


@pytest.mark.skipif(torch.__version__ < "2.11", reason="the card runs the newest FSDP alone")
def test_what_fsdp1_has_gathered_is_told_from_the_shards():
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    kept = ShardingStrategy.SHARD_GRAD_OP
    held, names = at_the_end_of_forward(
        FullyShardedDataParallel(layers(), sharding_strategy=kept, use_orig_params=True)
    )
    whole = 2 * 512 * 512 * 4
    assert (held[C.WEIGHTS], held[C.COMMUNICATION]) == (whole // 2, whole)
    assert names == {"model._flat_param gathered (524288,) float32"}
