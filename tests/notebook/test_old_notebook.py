"""Traced cells of an old notebook read no more than of a new one."""

import importlib

import pytest

from nbmem.capture.heap import unreachable
from nbmem.capture.interpreter import roots
from nbmem.capture.tensors import tensor_paths
from tests.ipython_shell import shell_on_virtual_card

pytest.importorskip("torch", reason="cells are traced that use torch")
walking = importlib.import_module("nbmem.capture.heap.heap_walk")

MODEL = """\
model = torch.nn.Linear(64, 64).cuda()
x = torch.ones(8, 64, device='cuda')
class Keeper: pass
"""
STEP = """\
model(x).sum().backward()
kept = torch.ones(1 << 19, device='cuda')
kept.shape
"""
CYCLE = """\
import gc; gc.disable()
keeper = Keeper(); keeper.me = keeper; keeper.lost = torch.ones(1 << 20, device='cuda')
del keeper
"""


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch) as running:
        run(running, MODEL)
        yield running


def run(shell, code, *, traced=False):
    result = shell.run_cell(
        ("%%memtrace --no-widget\n" if traced else "") + code, store_history=True
    )
    result.raise_error()


def holder_names(shell):
    from nbmem.frontends.notebook import extension

    session = extension._LOADED[shell].tracer.last.session
    return [session.names[root] for root in session.devices[0].holders.root.tolist()]


def test_the_history_of_ipython_is_walked_by_no_name(shell, monkeypatch):
    looked = []
    inside = tensor_paths._items
    monkeypatch.setattr(tensor_paths, "_items", lambda *args: looked.append(1) or inside(*args))
    counts = []
    for _ in range(2):
        run(shell, STEP, traced=True)
        looked.clear()
        run(shell, STEP, traced=True)
        counts.append((len(looked), len(list(roots.places(shell.user_ns)))))
        for _ in range(40):
            run(shell, "model.weight.shape")
    assert "_i40" in shell.user_ns
    (looked_first, places_first), (looked_last, places_last) = counts
    assert looked_last <= looked_first
    assert places_last == places_first


def test_live_objects_are_searched_where_a_block_may_hold_a_lost_tensor(shell, monkeypatch):
    searched = []
    search = unreachable.all_tensors
    monkeypatch.setattr(walking, "all_tensors", lambda t: searched.append(1) or search(t))

    def searches(code):
        searched.clear()
        run(shell, code, traced=True)
        return len(searched)

    searches(STEP)  # cuBLAS's workspace: nothing but a search shows that no tensor is in it
    assert [searches(STEP) for _ in range(3)] == [0, 0, 0]
    run(shell, STEP)
    assert searches(STEP) == 1, "an untraced cell may have left something"
    assert searches(STEP) == 0
    try:
        assert searches(CYCLE) == 1
        assert "a reference cycle" in holder_names(shell)
        assert searches(STEP) == 1, "it is named in every report while it lives"
        assert "a reference cycle" in holder_names(shell)
    finally:
        run(shell, "gc.enable(); gc.collect();")
    searches(STEP)
    assert searches(STEP) == 0


def test_names_of_ones_own_are_looked_at_whatever_ipython_calls_its_own(shell):
    run(shell, "_5 = torch.ones(1 << 20, device='cuda'); exit = [torch.ones(1 << 20).cuda()]")
    run(shell, STEP, traced=True)
    assert "_5" in holder_names(shell)
