"""What a virtual card knows of the notebook's tensors travels with a cell."""

import pytest
import torch

from nbmem import virtual
from nbmem.estimates.programs import programs, serialization
from nbmem.estimates.runs.probe_run import Request, probe
from tests.estimate.small_cards import small_card

pytestmark = pytest.mark.torch
CELL = """
import torch
full = bool((mask == 1).all())
made = torch.empty(1 << 20 if full else 1 << 22, dtype=torch.uint8, device="cuda")
made = None
"""


def peaks(mask):
    """Return the peak of the cell here, and in the run of an estimate."""
    with virtual.activated(small_card(200)):
        namespace = {"mask": mask()}
        program = programs.cell(CELL, namespace)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        exec(CELL, dict(namespace))
        here = torch.cuda.max_memory_allocated() - before
        held = before
    found = probe(program, Request(card=small_card(200), value=None)).probe
    return here, found.allocated - held


def test_a_mask_of_ones_is_one_in_the_estimate():
    assert peaks(lambda: torch.ones(2, 64, dtype=torch.long).cuda()) == (1 << 20, 1 << 20)


def test_a_mask_with_a_gap_has_it_in_the_estimate():
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[1, 60:] = 0
    assert peaks(lambda: mask.to("cuda")) == (1 << 22, 1 << 22)


def test_unknown_values_stay_unknown():
    """Values that nothing shows are no zeros: a sampled mask has no known sum."""
    with virtual.activated("T4"):
        drawn = torch.randint(0, 2, (2, 64), device="cuda")
        assert virtual.known_values(drawn.untyped_storage()).cpu_values is None
        copy = serialization.new_storage("cuda", drawn.untyped_storage().nbytes(), None)
        assert virtual.known_values(copy).cpu_values is None


def test_values_above_the_limit_are_left_out(monkeypatch):
    monkeypatch.setattr(serialization, "SMALL", 64)
    with virtual.activated("T4"):
        small = torch.ones(8, dtype=torch.long).cuda().untyped_storage()
        large = torch.ones(16, dtype=torch.long).cuda().untyped_storage()
        assert serialization.storage_id(small, {})[-1].cpu_values is not None
        assert serialization.storage_id(large, {})[-1].cpu_values is None


def test_a_storage_of_no_active_card_is_not_known():
    assert virtual.known_values(torch.ones(2).untyped_storage()) is None
