"""Fixtures: a virtual card, and a heap walk with plain rows."""

import gc
import sys

import pytest

from nbmem import virtual
from nbmem.capture.heap import walk


@pytest.fixture(autouse=True, scope="module")
def _heap_of_its_own():
    """Leave the whole heap visible to the walk."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def card(monkeypatch):
    for name in ("last_exc", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    gc.collect()
    with virtual.activated("H100 80GB") as gpu:
        yield gpu


@pytest.fixture
def holders():
    """Walk a namespace; return (kind, root, path) by storage size."""

    def look(namespace):
        found = walk(namespace).by_device.get(0, ())
        return {
            held.size: [
                (way.kind.name, way.root, way.path)
                for way in held.holders
                if not way.root.startswith("test_")  # the test itself has locals, too
            ]
            for held in found
        }

    return look
