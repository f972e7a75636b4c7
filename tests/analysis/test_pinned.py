"""Pinned memory is the host's: a report of a card says it in a note, if it is some."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="a card is traced")

import nbmem.api as nbmem  # noqa: E402
from nbmem import virtual  # noqa: E402
from nbmem.analysis.build import build_report  # noqa: E402

MIB = 1 << 20


@pytest.mark.parametrize("held", [MIB - 1, MIB, 3 * MIB])
def test_it_is_said_from_a_mebibyte_on(held):
    with virtual.activated("T4"), nbmem.trace("cell", namespace={}) as t:
        torch.ones(1, device="cuda")
    session = replace(t.session, facts={**t.session.facts, "pinned": {"held": held, "used": 0}})
    said = [note for note in build_report(session).notes if "pinned for copies" in note]
    assert len(said) == (held >= MIB)


def test_pinned_tensors_to_the_byte():
    with virtual.activated("T4"), nbmem.trace("cell", namespace={}) as t:
        torch.ones(1, device="cuda")
        kept = torch.empty(4 * MIB, dtype=torch.uint8).pin_memory()
    assert t.session.facts["pinned"] == {"held": 4 * MIB, "used": 4 * MIB}
    del kept
