"""Selective checkpointing as a remedy: its bytes and its price."""

import pytest

torch = pytest.importorskip("torch")

from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import planner
from nbmem.estimates.remedies.blocks import Checkpoint, SelectiveCheckpoint
from nbmem.estimates.runs.probe_run import Request, probe

SOURCE = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.qkv = nn.Linear(256, 768)
        self.wide = nn.Linear(256, 1024)
        self.act = nn.GELU()
        self.thin = nn.Linear(1024, 256)
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        x = x + scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.thin(self.act(self.wide(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters())
for step in range(2):
    loss = net(torch.randn(64, 128, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = SOURCE.replace("            x = block(x)", "            x = again(block, x)")
POLICY = """
from torch.utils.checkpoint import (
    CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts,
)

def policy(context, operator, *args, **kwargs):
    name = operator.overloadpacket.__name__
    if name in ("mm", "addmm", "bmm", "convolution") or name.startswith("_scaled_dot_product"):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE

def again(block, x):
    contexts = lambda: create_selective_checkpoint_contexts(policy)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
"""


def probe_cell(source, *keys):
    reply = probe(programs.cell(source, {}), Request(card=virtual.find_card("T4"), remedies=keys))
    assert reply.probe.failure is None
    return reply


@pytest.fixture(scope="module")
def reply():
    return probe_cell(SOURCE, "checkpoint_selective")


def test_the_remedy_holds_what_a_hand_written_policy_holds(reply):
    assert reply.refused is None
    assert reply.probe.allocated == probe_cell(POLICY + BY_HAND).probe.allocated
    assert reply.probe.allocated == probe_cell(reply.changed).probe.allocated


def test_the_remedy_lies_between_nothing_and_full_checkpointing(reply):
    whole = probe_cell(SOURCE, "checkpoint").probe.allocated
    assert whole < reply.probe.allocated < probe_cell(SOURCE).probe.allocated


def test_the_remedy_names_what_is_recomputed_and_keeps_only_operators_of_the_blocks(reply):
    assert reply.price == (
        "computes add, native_layer_norm, gelu of the blocks again in backward, no matrix product "
        "and no attention: little arithmetic"
    )
    assert "aten.addmm.default" in reply.code
    assert "convolution" not in reply.code
    assert "for block in net.blocks:" in reply.code


def test_a_program_with_nothing_to_keep_is_a_sentence():
    source = SOURCE.replace("self.qkv(self.norm(x))", "self.norm(x).repeat(1, 1, 3)").replace(
        "scaled_dot_product_attention(q, k, v)", "(q + k + v)"
    )
    plain = source.replace("self.thin(self.act(self.wide(x)))", "self.act(x)")
    assert probe_cell(plain, "checkpoint_selective").refused == SelectiveCheckpoint.not_applicable
    assert probe_cell(source, "checkpoint_selective").refused is None


def test_checkpointing_is_no_line_where_it_needs_no_less(here, monkeypatch):
    monkeypatch.setattr(planner, "REMEDIES", (SelectiveCheckpoint, Checkpoint))
    held = probe_cell(SOURCE, "checkpoint_selective").probe.allocated
    # Both are below what the program holds behind its steps, and their cache is given back.
    later = f'torch.empty({held + 40 * MIB}, dtype=torch.uint8, device="cuda")'
    source = f"{SOURCE}\ntorch.cuda.empty_cache()\nlater = {later}\n"

    def rows(of):
        found = here.plan(programs.cell(of, {}), "T4", every=True)
        return {option.key: option for option in found.options}

    assert rows(SOURCE)["checkpoint"].probe is not None
    found = rows(source)
    assert found["checkpoint_selective"].saved > 0
    assert found["checkpoint"].why_not == (
        "It needs no less than selective checkpointing, which costs less."
    )
