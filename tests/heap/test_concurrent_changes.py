"""Containers that other threads change during a walk."""

import sys
import threading
from collections import deque

import pytest
import torch

from nbmem.capture.interpreter.object_members import entries_of, first_of
from nbmem.capture.tensors.tensor_paths import reachable_tensors

READINGS = 4_000


@pytest.fixture
def others():
    """Run a function in threads until the test ends."""
    interval, over, running = sys.getswitchinterval(), threading.Event(), []

    def run(change):
        def work():
            while not over.is_set():
                change()

        running.extend(threading.Thread(target=work) for _ in range(3))
        for thread in running:
            thread.start()

    sys.setswitchinterval(1e-6)
    yield run
    over.set()
    for thread in running:
        thread.join()
    sys.setswitchinterval(interval)


def test_a_dictionary(others):
    kept = {f"k{i}": i for i in range(200)}

    def change():
        for i in range(50):
            kept[f"new{i}"] = 1
        for i in range(50):
            kept.pop(f"new{i}", None)

    others(change)
    for _ in range(READINGS):
        assert 200 <= len(entries_of(kept)) <= 250
        assert len(entries_of(kept, 150)) == 150


def test_a_deque(others):
    kept = deque(range(200))

    def change():
        kept.extend(range(50))
        for _ in range(50):
            kept.pop()

    others(change)
    for _ in range(READINGS):
        assert len(first_of(lambda: iter(kept), 150)) == 150


def test_what_a_name_leads_to(others):
    inner = {f"k{i}": [i] for i in range(50)}
    inner["tensor"] = torch.ones(1)

    def change():
        for i in range(50):
            inner[f"new{i}"] = []
        for i in range(50):
            inner.pop(f"new{i}", None)

    others(change)
    for _ in range(READINGS // 8):
        assert [name for name, _ in reachable_tensors([("inner", inner)])] == ["inner['tensor']"]
