"""A single-card program, spread over several cards in every way."""

import functools

import pytest
import torch

if not torch.distributed.is_available() or torch.__version__ < "2.11":
    pytest.skip("the card runs the newest FSDP alone", allow_module_level=True)

from nbmem.estimates.programs import programs
from nbmem.estimates.questions import parallel_variants, world_sizes
from nbmem.estimates.remedies import PARALLELISMS
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.world_choice import of_world, world_for

WIDTH, LAYERS, BATCH = 512, 3, 8
WEIGHTS = LAYERS * 2 * 4 * WIDTH * WIDTH * 4
OUT = BATCH * WIDTH * 4
TRAIN = f"""\
'''A program of one card.'''
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear({WIDTH}, {4 * WIDTH}, bias=False)
        self.act = nn.GELU()
        self.down = nn.Linear({4 * WIDTH}, {WIDTH}, bias=False)
    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

model = nn.Sequential(*(Block() for _ in range({LAYERS}))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    loss = model(torch.randn({BATCH}, {WIDTH}, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WRAPPED = (
    "import os, torch.distributed as dist\ndist.init_process_group('nccl')\n"
    + TRAIN.replace("'''A program of one card.'''\nfrom __future__ import annotations\n", "")
    + "\n"
).replace("optimizer = ", "model = nn.parallel.DistributedDataParallel(model)\noptimizer = ")
UNEVEN = ((WIDTH, 640), (640, 320), (320, 640))
"""The largest goes to rank 0, and both others, which are more together, to rank 1."""
HYBRID = "All cards are in one machine: it would be FSDP2."
KEYS = [kind.key for kind in PARALLELISMS]


@functools.cache
def probe_rank(source, ranks, *keys, gpu="H100", **more):
    card, world = world_for(gpu, ranks)
    program = of_world(programs.cell(source, {}), world)
    return probe(program, Request(card=card, remedies=keys, **more))


@pytest.fixture
def whole(here, monkeypatch):
    monkeypatch.setattr(world_sizes, "EstimateProcess", here.EstimateProcess)
    monkeypatch.setattr(parallel_variants, "EstimateProcess", here.EstimateProcess)
    return here


LATER = TRAIN.replace(").cuda()", ")\nmodel = model.to('cuda')")
THERE = TRAIN.replace(").cuda()", ")").replace(
    "model = nn", "torch.set_default_device('cuda')\nmodel = nn"
)


_MADE = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
EARLY = TRAIN.replace(f").cuda()\n{_MADE}", f")\n{_MADE}model = model.to('cuda')\n")


@pytest.fixture(autouse=True)
def _no_default_device():
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize(("key", "source"), [
    ("zero1", TRAIN), ("zero3", TRAIN), ("tp", TRAIN), ("ddp", THERE),
    ("zero3", EARLY),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ("ddp", TRAIN), ("zero2", TRAIN), ("hsdp", TRAIN), ("ddp", LATER), ("zero3", LATER),
        ("zero3", THERE),
    )),
])  # fmt: skip
def test_the_pasted_lines_hold_what_the_way_promised(key, source):
    reply = probe_rank(source, 16, key)
    assert reply.refused is None
    assert reply.changed, reply.code
    pasted = probe_rank(reply.changed, 16)
    assert pasted.probe.failure is None
    assert pasted.probe.notes == reply.probe.notes
    assert (pasted.probe.held, pasted.probe.allocated) == (reply.probe.held, reply.probe.allocated)
    assert pasted.probe.sent == reply.probe.sent


@pytest.mark.parametrize("key", ["ddp", "zero1"])
def test_a_model_whose_optimizer_is_made_on_the_host_is_copied_once_it_is_on_the_card(key):
    early, usual = probe_rank(EARLY, 8, key), probe_rank(TRAIN, 8, key)
    assert early.refused is None
    assert early.probe.failure is None
    assert (early.probe.held, early.probe.sent) == (usual.probe.held, usual.probe.sent)
    assert early.changed is None
    assert "  # behind the line that moves it to the card" in early.code


def test_tensor_parallel_layers_are_cast_by_autocast():
    cast = TRAIN.replace(
        "    loss = model(",
        '    with torch.autocast("cuda", torch.bfloat16):\n        loss = model(',
    )
    reply = probe_rank(cast, 8, "tp")
    assert reply.probe.failure is None
    # Forward adds up what is bfloat16; the gradients of what was cast are float32 again.
    assert reply.probe.sent["all-reduce"] == LAYERS * OUT // 2 + (LAYERS - 1) * OUT


@pytest.mark.parametrize(("line", "names"), [
    ("device = 'cuda'  # or 'cuda:0', .cuda(0)", False),
    ("'Runs on cuda:0.'", False),
    ("device = f'cuda:{local}'", False),
    ("device = 'cuda:0'", True),
    ("model.cuda(0)", True),
])  # fmt: skip
def test_a_program_that_names_the_first_card(line, names):
    assert parallel_variants.names_a_card(line) is names


def test_a_program_that_fails_in_a_way_is_not_said_to_have_nothing_to_spread():
    failing = TRAIN.replace("for step", "assert not torch.distributed.is_initialized()\nfor step")
    reply = probe_rank(failing, 8, "ddp")
    assert reply.refused is None
    assert "AssertionError" in str(reply.probe.failure)


@pytest.mark.parametrize(("key", "weights", "state", "sent"), [
    ("ddp", 1, 1, {"all-reduce": WEIGHTS}),
    ("zero1", 1, 6, {"all-reduce": WEIGHTS, "broadcast": WEIGHTS}),
    ("zero2", 16, 16, {"all-gather": WEIGHTS, "reduce-scatter": WEIGHTS}),
    ("zero3", 16, 16, {"all-gather": 2 * WEIGHTS, "reduce-scatter": WEIGHTS}),
    ("hsdp", 8, 8, {
        "all-gather": 2 * WEIGHTS, "reduce-scatter": WEIGHTS, "all-reduce": WEIGHTS // 8}),
    ("tp", 16, 16, {
        "all-gather": 2 * WEIGHTS // 8, "reduce-scatter": WEIGHTS // 8,
        "all-reduce": (2 * LAYERS - 1) * OUT}),
])  # fmt: skip
def test_a_way_cuts_and_sends_what_it_says(key, weights, state, sent):
    found = probe_rank(TRAIN, 16, key)
    held = found.probe.held
    assert held["weights"] == WEIGHTS // weights
    # ZeRO-1 hands out whole matrices, of which there are six. Adam counts steps, too.
    assert held["optimizer state"] // 4096 == 2 * WEIGHTS // state // 4096
    assert found.probe.sent == sent


def test_an_optimizer_without_parameters_is_left():
    emptied = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    emptied.param_groups.clear()
    assert probe_rank(TRAIN, 16, "zero1").probe.failure is None


@pytest.mark.long
def test_an_optimizers_parts_are_those_of_the_rank_that_has_most():
    layers = ", ".join(f"nn.Linear({a}, {b}, bias=False)" for a, b in UNEVEN)
    row = f"nn.Sequential(*(Block() for _ in range({LAYERS})))"
    uneven = TRAIN.replace(row, f"nn.Sequential({layers})")
    first = probe_rank(uneven, 2, "zero1")
    assert first.fullest == 1
    other = probe_rank(uneven, 2, "zero1", rank=first.fullest)
    assert other.probe.held["optimizer state"] > first.probe.held["optimizer state"]
    assert other.probe.process > first.probe.process


def test_a_plan_over_ways_and_worlds(whole):
    program = programs.cell(TRAIN, {}, title="train.py")
    answer = whole.worlds(program, "T4", (8,))
    ran = {(way.ranks, way.key) for way in answer.ways if way.probe is not None}
    assert {way.why_not for way in answer.ways} == {None, HYBRID}
    assert ran == {(1, "as it is"), *((8, key) for key in KEYS if key != "hsdp")}
    text = " ".join(str(answer).split())
    assert text.startswith("One of these cards trains it: it takes ")
    assert "On more of them, the first way that fits: 8, with DDP (" in text
    assert f"HSDP on 8 cards: {HYBRID}" in text
    assert "+model = DDP(model, device_ids=[local])" in text
    assert "TP of 8:" in text
    assert f"all-reduce {WEIGHTS >> 20}.0 MiB" in text
    assert "fully_shard(block, reshard_after_forward=False)" in answer.to_html()
    told = answer.to_json()["ways"]
    assert [w["ranks"] for w in told if w["cheapest"]] == [8]
    assert [w["why_not"] for w in told if w["key"] == "hsdp"] == [HYBRID]
    assert answer.runs[0][1] == answer.ways[1].probe


def test_a_program_that_wraps_its_model_has_other_ways(whole):
    answer = whole.worlds(programs.cell(WRAPPED, {}), "T4", (8,))
    found = {way.key: way.probe for way in answer.ways}
    assert list(found) == ["as it is", "ddp_views", "ddp_zero1", "ddp_zero3"]
    as_it_is = found["as it is"]
    assert as_it_is.allocated - found["ddp_views"].allocated == WEIGHTS
    assert found["ddp_zero1"].held["optimizer state"] < as_it_is.held["optimizer state"] / 5
    assert found["ddp_zero3"].held["weights"] == WEIGHTS // 8
    assert found["ddp_zero3"].sent == {"all-gather": 2 * WEIGHTS, "reduce-scatter": WEIGHTS}


@pytest.mark.long
def test_an_optimizer_that_is_made_too_early():
    wrap = "model = nn.parallel.DistributedDataParallel(model)\n"
    made = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    early = WRAPPED.replace(f"{wrap}{made}", f"{made}{wrap}")
    assert probe_rank(early, 8, "ddp_zero1").refused == (
        "The optimizer is made before the model is wrapped: make it afterwards."
    )
    found = probe_rank(EARLY, 8, "zero3").probe.held
    assert found["weights"] == WEIGHTS // 8
    assert found["optimizer state"] // 4096 == 2 * WEIGHTS // 8 // 4096


@pytest.mark.long
def test_a_sharded_program_has_its_switch():
    cut = WRAPPED.replace(
        "model = nn.parallel.DistributedDataParallel(model)",
        "from torch.distributed.fsdp import fully_shard\n"
        "for block in model:\n    fully_shard(block)\nfully_shard(model)",
    )
    as_it_is, off, on = (
        probe_rank(cut, 8, *keys) for keys in ((), ("reshard_off",), ("reshard_on",))
    )
    assert as_it_is.probe.sent["all-gather"] == 2 * WEIGHTS
    assert off.probe.sent["all-gather"] == WEIGHTS
    assert off.probe.allocated > as_it_is.probe.allocated
    assert on.refused == "The program has no fully_shard to which it would make a difference."
    pasted = probe_rank(off.changed, 8)
    assert pasted.probe.allocated == off.probe.allocated


@pytest.mark.parametrize(("wide", "act", "why"), [
    (WIDTH - 1, "GELU()", "No layers of the model could be told that can be cut"),
    (1027, "GELU()", "No number of cards divides the layers that could be cut."),
])  # fmt: skip
def test_layers_that_cannot_be_cut_are_left(wide, act, why):
    source = TRAIN.replace(f"{4 * WIDTH}", f"{wide}").replace("GELU()", act)
    assert probe_rank(source, 8, "tp").refused.startswith(why)


def test_in_a_row_of_layers_what_lies_between_must_take_each_number_by_itself():
    from torch import nn

    from nbmem.estimates.remedies.tensor_parallel import inferred_plan

    def row(between):
        return nn.Sequential(nn.Sequential(nn.Linear(4, 16), between, nn.Linear(16, 4)))

    assert inferred_plan(row(nn.GELU())) == {"*.0": "colwise", "*.2": "rowwise"}
    assert not inferred_plan(row(nn.Softmax(-1)))
    assert not inferred_plan(row(nn.LayerNorm(16)))
