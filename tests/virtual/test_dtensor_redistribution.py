"""DTensor's collectives are communication, to the byte."""

import numpy as np
import pytest
import torch
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category
from nbmem.report.analysis import card_ledger_of

if torch.__version__ < "2.13" or not torch.distributed.is_available():
    pytest.skip("as torch 2.13 redistributes", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

ROWS, WIDTH, RANKS = 64, 256, 4
WHOLE = ROWS * WIDTH * 4
"""Bytes of a batch."""


@pytest.fixture
def mesh():
    with virtual.activated("H100"):
        torch.distributed.init_process_group("nccl", rank=0, world_size=RANKS)
        yield init_device_mesh("cuda", (RANKS,))
        torch.distributed.destroy_process_group()


def communication_blocks(run, **names):
    """Return (name, phase, bytes) of each communication block."""
    with nbmem.trace("cell", namespace=names) as trace:
        run()
    card_ledger = card_ledger_of(trace.session)
    rows = np.flatnonzero(card_ledger.category == Category.COMMUNICATION)
    phases = [card_ledger.phases.spans[card_ledger.born_in[row]][1].name for row in rows]
    sizes = card_ledger.allocations.requested[rows].tolist()
    return [(card_ledger.name(row), *told) for row, *told in zip(rows, phases, sizes, strict=True)]


def layers(mesh, rows):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
    plan = {"0": ColwiseParallel(input_layouts=rows), "1": RowwiseParallel(output_layouts=rows)}
    return parallelize_module(model, mesh, plan)


def test_tensor_parallel_layers_reduce_their_result(mesh):
    model, given = layers(mesh, Replicate()), torch.zeros(ROWS, WIDTH, device="cuda")
    given.requires_grad_()
    found = communication_blocks(
        lambda: model(given * 1).sum().backward(), model=model, given=given
    )
    assert [(phase, size) for _, phase, size in found] == [("forward", WHOLE), ("backward", WHOLE)]
    assert found[0][0] == f"DTensor's all-reduce ({ROWS}, {WIDTH}) float32"


def test_sequence_parallel_layers_gather_and_scatter(mesh):
    model = layers(mesh, Shard(0))
    given = torch.zeros(ROWS // RANKS, WIDTH, device="cuda")
    found = communication_blocks(lambda: model(given).sum().backward(), model=model, given=given)
    assert [(name.partition(" (")[0], phase, size) for name, phase, size in found] == [
        ("saved by model.0", "forward", WHOLE),  # gathered, and kept for backward
        ("DTensor's reduce-scatter", "forward", WHOLE // RANKS),
        ("gradient in model.*", "backward", WHOLE),
    ]


def test_what_is_cut_or_has_its_place_is_none(mesh):
    whole = torch.zeros(ROWS, WIDTH, device="cuda")
    replica = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    assert (
        communication_blocks(lambda: replica.redistribute(placements=[Shard(0)]), replica=replica)
        == []
    )
    assert (
        communication_blocks(
            lambda: replica.redistribute(placements=[Replicate()]), replica=replica
        )
        == []
    )


def test_what_is_gathered_for_a_name_is_the_users(mesh):
    part = DTensor.from_local(torch.zeros(ROWS, WIDTH, device="cuda"), mesh, [Shard(0)])
    names = {"part": part}
    with nbmem.trace("cell", namespace=names) as trace:
        names["state"] = {"weight": part.full_tensor()}
    card_ledger = card_ledger_of(trace.session)
    (row,) = np.flatnonzero(card_ledger.allocations.requested == RANKS * WHOLE)
    assert card_ledger.category[row] == Category.USER_TENSORS
    assert card_ledger.name(row) == f"state['weight'] ({RANKS * ROWS}, {WIDTH}) float32"


def test_torch_has_its_names_back(mesh):
    from torch.distributed.tensor import _redistribute

    part = DTensor.from_local(torch.zeros(ROWS, WIDTH, device="cuda"), mesh, [Shard(0)])
    before = _redistribute.dtensor, _redistribute.funcol
    assert len(communication_blocks(part.full_tensor)) == 1
    assert (_redistribute.dtensor, _redistribute.funcol) == before
