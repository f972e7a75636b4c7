"""Pinned host memory is noted in a report of a card."""

from dataclasses import replace

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.api.render import read
from nbmem.capture.program.program_facts import pinned_bytes
from nbmem.report.analysis.report_builder import build_report

MIB = 1 << 20


@pytest.mark.parametrize("held", [MIB - 1, MIB, 3 * MIB])
def test_pinned_memory_is_noted_from_one_mebibyte(held):
    with virtual.activated("T4"), nbmem.trace("cell", namespace={}) as t:
        torch.ones(1, device="cuda")
    session = replace(t.session, facts={**t.session.facts, "pinned": {"held": held, "used": 0}})
    notes = [note for note in build_report(session).notes if "pinned for copies" in note]
    assert len(notes) == (held >= MIB)


def test_pinned_tensors_to_the_byte():
    with virtual.activated("T4"), nbmem.trace("cell", namespace={}) as t:
        torch.ones(1, device="cuda")
        kept = torch.empty(4 * MIB, dtype=torch.uint8).pin_memory()
    assert t.session.facts["pinned"] == {"held": 4 * MIB, "used": 4 * MIB}
    del kept


def counters(names, live, used):
    """Return counters of torch's host allocator, by its names."""
    blank = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    values = ({"current": 4}, {"current": 4 * MIB}, {"current": live}, used)
    return {name: {**blank, **value} for name, value in zip(names, values, strict=True)}


V29 = ("segment", "reserved_bytes", "allocation", "allocated_bytes")
V211 = ("allocations", "allocated_bytes", "active_requests", "active_bytes")


@pytest.mark.parametrize(
    ("names", "live", "used", "freed", "in_use"),
    [
        (V29, 4, 4 * MIB, 0, 4 * MIB),
        (V29, 4, 8 * MIB + 4, -4, 4 * MIB),  # four came back, and were taken again
        (V211, 4, 8 * MIB + 4, -4, 4 * MIB),
        (V211, 0, 4 * MIB + 4, -4, 0),
        (V211, 1, 4 * MIB + 3, -3, None),
        (V211, 1, MIB, 3 * MIB, MIB),  # as torch 2.13 counts
    ],
)
def test_what_is_held_and_used_by_the_counters_of_each_torch(names, live, used, freed, in_use):
    notes = pinned_bytes(counters(names, live, {"current": used, "freed": freed}))
    assert notes == {"held": 4 * MIB, "used": in_use}


def test_counters_of_other_names_say_nothing():
    assert pinned_bytes({"num_host_alloc": 1}) is None


def test_without_a_count_of_used_bytes_only_held_ones_are_noted():
    with virtual.activated("T4"), nbmem.trace("cell", namespace={}) as t:
        torch.ones(1, device="cuda")
    pinned = {"held": 3 << 30, "used": None}
    session = replace(t.session, facts={**t.session.facts, "pinned": pinned})
    (notes,) = (note for note in build_report(session).notes if "pinned for copies" in note)
    assert "in use" not in notes
    assert "pinned_memory" not in {
        f.rule for f in read(session, 0, everything=True).report.findings
    }
