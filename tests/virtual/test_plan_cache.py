"""Cached plans give a later card the same bytes."""

import dataclasses

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.virtual.patches.compiled.compiler import PLANNED
from nbmem.virtual.warnings import is_unplanned

pytestmark = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")
ODD = 4097
"""Rows that are no multiple of 4: Inductor times each product beside a padded one."""


def training_peaks(rows):
    """Return the peaks of three steps of a compiled model."""
    blocks = [nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512)) for _ in range(2)]
    model = nn.Sequential(*blocks).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    compiled, x = torch.compile(model), torch.randn(rows, 512, device="cuda")
    peaks = []
    for _ in range(3):
        compiled(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    return peaks


@pytest.fixture
def planned_graphs(monkeypatch):
    """Record the names of the graphs that Inductor lowers."""
    from torch._inductor.graph import GraphLowering

    found = []
    true_run = GraphLowering.run

    def run(graph, *args):
        found.append(graph.name)
        return true_run(graph, *args)

    monkeypatch.setattr(GraphLowering, "run", run)
    return found


def test_a_kept_plan_takes_the_same_bytes_with_what_was_timed_and_is_of_its_card(
    tmp_path, planned_graphs
):
    card = virtual.find_card("H100")
    larger = dataclasses.replace(card, total_bytes=1 << 50, nvml_total=1 << 50)
    runs = []
    for place in (larger, card, virtual.find_card("T4")):
        with virtual.activated((place,), keep=str(tmp_path)) as gpu:
            planned_graphs.clear()
            runs.append((len(planned_graphs), training_peaks(ODD), len(planned_graphs)))
            assert not any(map(is_unplanned, gpu.notes))
    (_, first, made), (_, again, more), (_, _, other) = runs
    assert made == other == 2  # forward and backward
    assert more == 0
    assert again == first
    with virtual.activated((card,)):
        assert training_peaks(ODD) == first
