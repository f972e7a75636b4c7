"""The sidebar is told what other frameworks hold, as long as that can be so."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="a card is read once torch has it")

from nbmem.frontends.sidebar.card_reader import CardReader

MIB, GIB = 1 << 20, 1 << 30


def told(reader):
    (sample,) = reader.read()
    return sample.frameworks


def test_what_they_use_and_what_they_keep(card, cupy, jax):
    reader = CardReader()
    assert told(reader) == ()
    card.library_bytes = 3 * GIB
    cupy.held, cupy.used = 2 * GIB, MIB
    assert told(reader) == (
        ("frameworks", "CuPy", MIB),
        ("frameworks_cached", "CuPy, cached", 2 * GIB - MIB),
    )
    jax |= {"bytes_in_use": GIB, "pool_bytes": GIB}
    assert told(reader) == (
        ("frameworks", "CuPy and JAX", GIB + MIB),
        ("frameworks_cached", "CuPy and JAX, cached", 2 * GIB - MIB),
    )


def test_more_than_the_process_holds_is_nobodys(card, cupy):
    cupy.held = cupy.used = 2 * GIB
    assert told(CardReader()) == ()
