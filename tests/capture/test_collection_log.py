"""What a garbage collection frees is found in the history, to the byte."""

import gc

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.tips.measure import program_runner
from tests.tips.programs import MODEL

MIB = 2**20
CYCLE = """
import gc
class Node:
    pass
def lost(mib):
    node = Node()
    node.itself, node.value = node, torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def run():
    """Provide run(code, ...), which returns (trace, namespace)."""
    with program_runner() as go:
        yield go


@pytest.fixture
def collected(run):
    """Provide collected(code): the sizes in MiB of what collections freed, by collection."""

    def sizes(code):
        gc.disable()
        trace, _ = run(code, before=MODEL + CYCLE)
        (device,) = trace.session.devices
        found = device.collected
        return [
            sorted(device.events.size[found.event[found.collection == number]] // MIB)
            for number in np.unique(found.collection)
        ]

    return sizes


def test_each_collection_has_its_own(collected):
    assert collected("lost(8)\nlost(4)\ngc.collect()\nlost(2)\ngc.collect()") == [[4, 8], [2]]


def test_a_young_collection_counts(collected):
    assert collected("lost(8)\ngc.collect(0)") == [[8]]


def test_references_free_without_the_collector(collected):
    code = "x, model = torch.empty(8 << 20, device='cuda'), net()\nmodel(batch()).sum().backward()\n"
    assert collected(code + "del x\ngc.collect()\ndel model\ngc.collect()") == []


def test_a_del_right_before_a_collection_does_not_count(collected):
    code = "for _ in range(3):\n    x = torch.empty(8 << 20, device='cuda')\n    lost(2)\n"
    assert collected(code + "    del x; gc.collect()") == [[2]] * 3


def test_what_lives_on_does_not_count(collected):
    assert collected("lost(8)") == []


def test_a_collection_before_the_card_is_used(collected):
    assert collected("gc.collect()\nlost(4)\ngc.collect()") == [[4]]


def test_what_another_threads_engine_may_free_does_not_count(collected):
    code = """
import threading
x = torch.ones(8, device="cuda", requires_grad=True)
def collect(grad):
    lost(4)
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
x.register_hook(collect)
(x * 2).sum().backward()
lost(2)
gc.collect()
"""
    assert collected(code) == [[2]]


def test_the_collectors_callbacks_are_as_before(run):
    before = list(gc.callbacks)
    inside = run("import gc\ncount = len(gc.callbacks)", before=MODEL)[1]["count"]
    assert inside == len(before) + 1
    assert gc.callbacks == before


def test_the_programs_own_callbacks_remain(run):
    code = "import gc\ngc.callbacks.clear()\nmine = lambda *_: None\ngc.callbacks.append(mine)"
    names = run(code, before=MODEL)[1]
    assert gc.callbacks == [names["mine"]]
    gc.callbacks.clear()


def test_the_number_of_collections_is_unchanged(run):
    code = """
import gc
gc.enable(); gc.collect()
counts = []
gc.callbacks.append(count := lambda phase, about: counts.append(about["generation"]))
kept = [[] for _ in range(30_000)]
gc.callbacks.remove(count)
"""
    traced = run(code, before=MODEL)[1]["counts"]
    names = {}
    exec(code, names)
    assert traced == names["counts"]
