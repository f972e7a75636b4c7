"""Memory of other frameworks in the sidebar."""

import pytest

torch = pytest.importorskip("torch", reason="a card is read once torch has it")

from nbmem.frontends.sidebar.card_reader import CardReader

MIB, GIB = 1 << 20, 1 << 30


def framework_samples(reader):
    (sample,) = reader.read()
    return sample.frameworks


def test_frameworks_have_used_and_cached_bytes(card, cupy, jax):
    reader = CardReader()
    assert framework_samples(reader) == ()
    card.library_bytes = 3 * GIB
    cupy.held, cupy.used = 2 * GIB, MIB
    assert framework_samples(reader) == (
        ("frameworks", "CuPy", MIB),
        ("frameworks_cached", "CuPy, cached", 2 * GIB - MIB),
    )
    jax |= {"bytes_in_use": GIB, "pool_bytes": GIB}
    assert framework_samples(reader) == (
        ("frameworks", "CuPy and JAX", GIB + MIB),
        ("frameworks_cached", "CuPy and JAX, cached", 2 * GIB - MIB),
    )


def test_more_than_the_process_holds_is_not_shown(card, cupy):
    cupy.held = cupy.used = 2 * GIB
    assert framework_samples(CardReader()) == ()
