"""Holders of tensors by the notebook's names, to the byte."""

import asyncio
import collections
import functools
import gc
import sys
import threading
import time
import weakref
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbmem.capture.heap import walk
from nbmem.capture.heap.backward_search import FEW, BackwardSearch
from nbmem.capture.heap.reachability import ForwardWalk
from nbmem.capture.tensors.autograd_graphs import Graphs

OLD_TORCH = not hasattr(torch._C._autograd.SavedTensor, "data")


def kib(n):
    """Make a tensor of n KiB, which its size identifies."""
    return torch.zeros(n * 256, device="cuda")


def paths(rows):
    return [path for _, _, path in rows]


def test_names_are_what_a_person_would_type(holders):
    box = type("Box", (), {})()
    box.inner = collections.deque([kib(5)])
    found = holders(
        {
            "x": kib(1),
            "history": [0, [kib(2)]],
            "checkpoint": {"model": {"layer.0.weight": kib(3)}, 7: kib(4)},
            "box": box,
            "both": (functools.partial(print, kib(6)), {("a", 1): kib(7)}),
            "<b>&\"'": kib(8),
        }
    )
    assert {size // 1024: rows for size, rows in found.items()} == {
        1: [("NAME", "x", "x")],
        2: [("NAME", "history", "history[1][0]")],
        3: [("NAME", "checkpoint", "checkpoint['model']['layer.0.weight']")],
        4: [("NAME", "checkpoint", "checkpoint[7]")],
        5: [("NAME", "box", "box.inner[0]")],
        6: [("NAME", "both", "both[0].args[0]")],
        7: [("NAME", "both", "both[1]['a', 1]")],
        8: [("NAME", "<b>&\"'", "<b>&\"'")],
    }


def test_modules_and_optimizers_are_written_with_dots(holders):
    model = nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(24)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model[0](torch.zeros(4, 16, device="cuda")).sum().backward()
    optimizer.step()
    found = walk({"model": model, "optimizer": optimizer}).by_device[0]
    names = {held.name for held in found}
    assert {"model.0.weight", "model.0.weight.grad", "model.1.running_var"} <= names
    assert "optimizer.state[...]['momentum_buffer']" in names
    assert any(held.form == "(8, 16) float32" for held in found)


def test_views_share_one_storage_under_its_widest_form(holders):
    x = kib(4)
    namespace = {"row": x.view(4, 256)[1], "x": x, "t": x[:256]}
    (held,) = walk(namespace).by_device[0]
    assert (held.size, held.form) == (4096, "(1024,) float32")
    assert paths(holders(namespace)[4096]) == ["t", "x", "row"]


def test_a_view_that_outlives_its_base_does_not_pass_for_the_whole(holders):
    row = kib(4)[:256]
    namespace = {"row": row, "first": row[:8]}
    (held,) = walk(namespace).by_device[0]
    assert (held.size, held.form) == (4096, "(256,) float32, a view")


def test_closures_and_generators(holders):
    def hook(x, y):
        return lambda: (x, y)

    def batches(x):
        yield x

    async def task(x):
        await asyncio.sleep(0)

    generator, coroutine = batches(kib(2)), task(kib(3))
    next(generator)
    found = holders({"hooks": [hook(kib(1), [kib(4)])], "it": generator, "job": coroutine})
    coroutine.close()
    assert found[1024] == [("CLOSURE", "hooks", "x closed over by hooks[0]")]
    assert found[4096] == [("CLOSURE", "hooks", "y[0] closed over by hooks[0]")]
    assert found[2048] == [("GENERATOR", "it", "local x of the generator it")]
    assert found[3072] == [("GENERATOR", "job", "local x of the coroutine job")]


def fail():
    lost = [kib(1)]
    raise ValueError(lost is None)


def test_the_traceback_of_a_failed_cell(holders, monkeypatch):
    try:
        fail()
    except ValueError as err:
        monkeypatch.setattr(sys, "last_value", err, raising=False)
    assert holders({})[1024] == [
        (
            "TRACEBACK",
            "the traceback of ValueError",
            "local lost[0] of fail() in the traceback of ValueError",
        )
    ]


def test_a_look_leaves_no_copy_of_a_frames_locals(monkeypatch, card):
    try:
        fail()
    except ValueError as err:
        monkeypatch.setattr(sys, "last_value", err, raising=False)
        frame = err.__traceback__.tb_next.tb_frame
    assert walk({}).by_device
    frame.clear()
    assert torch.cuda.memory_allocated() == 0


def test_a_local_of_another_thread(holders):
    ready, done = threading.Event(), threading.Event()

    def worker():
        batch = kib(1)
        ready.set()
        done.wait()
        del batch

    thread = threading.Thread(target=worker, name="loader")
    thread.start()
    ready.wait()
    rows = holders({})[1024]
    done.set()
    thread.join()
    assert (
        "THREAD",
        "worker() in thread 'loader'",
        "local batch of worker() in thread 'loader'",
    ) in rows


@pytest.mark.skipif(OLD_TORCH, reason="this torch does not show saved tensors")
def test_what_only_a_graph_holds(holders):
    model = nn.Linear(64, 64, bias=False).cuda()
    loss = torch.relu(model(torch.zeros(3, 64, device="cuda"))).sum()
    found = holders({"history": [loss], "model": model})
    graph = ("GRAPH", "history", "the graph of history[0]")
    assert found[3 * 64 * 4] == [graph]
    assert found[64 * 64 * 4] == [("NAME", "model", "model.weight"), graph]
    # The input, and relu's result; both of the same size, held by nothing else.
    sizes = [h.size for h in walk({"history": [loss], "model": model}).by_device[0]]
    assert sizes.count(768) == 2


def test_a_custom_function_and_its_context(holders):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x + 1)
            ctx.mine = kib(3)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    y = Double.apply(torch.zeros(512, device="cuda", requires_grad=True)).sum()
    found = holders({"y": y})
    assert found[3072] == [("GRAPH", "y", "the graph of y")]
    if not OLD_TORCH:
        assert found[2048] == [("GRAPH", "y", "the graph of y")]


def test_no_saved_tensor_is_computed_again_or_copied_back():
    calls = []

    def block(x):
        calls.append(1)
        return torch.relu(x).exp()

    x = torch.zeros(256, device="cuda", requires_grad=True)
    first = checkpoint(block, x, use_reentrant=False)

    def unpack(packed):
        calls.append("unpacked")
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        second = x.exp().exp()
    before = torch.cuda.memory_allocated()
    walk({"first": first, "second": second})
    assert calls == [1]
    assert torch.cuda.memory_allocated() == before


def test_a_graph_that_was_used_up_holds_nothing(holders):
    x = torch.zeros(256, device="cuda", requires_grad=True)
    y = x.exp().sum()
    y.backward()
    assert sorted(holders({"y": y, "x": x})) == [4, 1024]


def test_a_reference_cycle_and_what_a_library_keeps(holders, monkeypatch):
    class Trainer:
        pass

    trainer = Trainer()
    trainer.me, trainer.buffer = [trainer], kib(1)
    del trainer
    import json

    monkeypatch.setattr(json, "cache", {"k": kib(2)}, raising=False)
    gc.disable()
    try:
        found = holders({})
    finally:
        gc.enable()
    assert found[1024] == [("CYCLE", "a reference cycle", "a reference cycle through Trainer.me")]
    assert found[2048] == [("MODULE", "module json", "json.cache")]


@pytest.mark.parametrize("count", [1, 2 * FEW])
def test_no_referents_of_a_module_are_requested(holders, monkeypatch, count):
    """Python 3.12's `_asyncio` shows its freed futures, and a collection would never end."""

    class Trainer:
        pass

    asked, ask = set(), gc.get_referents
    monkeypatch.setattr(gc, "get_referents", lambda *of: asked.update(map(type, of)) or ask(*of))
    kept = [kib(3)]  # by a module alone, in a namespace that no walk begins with
    there = ModuleType("there")
    there.kept, there.me = kept, there
    for size in range(count):
        trainer = Trainer()
        trainer.me, trainer.buffer = trainer, torch.zeros(2048 + 128 * size, device="cuda")
    del trainer, there, kept
    gc.disable()
    try:
        found = holders({})
    finally:
        gc.enable()
    assert any(kind == "CYCLE" for ways in found.values() for kind, *_ in ways)
    assert dict in asked
    assert ModuleType not in asked  # those of Python code have no state of their own


def test_a_data_loader(holders):
    class Cached(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = kib(1)

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return self.rows[i]

    iterator = iter(torch.utils.data.DataLoader(Cached()))
    kind, root, path = holders({"batches": iterator})[1024][0]
    assert (kind, root) == ("DATALOADER", "batches")
    assert path.startswith("batches._dataset")


def test_none_of_the_users_code_runs(holders):
    class Touchy:
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __repr__(self):
            raise AssertionError("repr")

        def __len__(self):
            raise AssertionError("len")

        def __eq__(self, other):
            raise AssertionError("eq")

        __hash__ = None
        __class__ = property(lambda self: 1 / 0)

    class Items(dict):
        def items(self):
            raise AssertionError("items")

        __iter__ = values = keys = items

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    class Key(str):  # noqa: SLOT000
        def __repr__(self):
            raise AssertionError("repr of a key")

        __hash__ = str.__hash__

    touchy = Touchy()
    object.__setattr__(touchy, "x", kib(1))
    loud = torch.Tensor._make_subclass(Loud, kib(3))
    found = holders(
        {"touchy": touchy, "items": Items(a=kib(2)), "loud": loud, "keys": {Key("k"): kib(4)}}
    )
    assert {size // 1024: paths(rows) for size, rows in found.items()} == {
        1: ["touchy.x"],
        2: ["items['a']"],
        3: ["loud"],
        4: ["keys[...]"],
    }


def test_a_wrapper_subclass_leads_to_what_it_wraps(holders):
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    assert holders({"w": Wrapped(kib(1))})[1024] == [("NAME", "w", "w.inner")]


def test_the_dense_parts_of_a_sparse_tensor():
    dense = torch.eye(3)
    parts = Graphs(torch).of_sparse
    assert [tuple(part.shape) for part in parts(dense.to_sparse())] == [(2, 3), (3,)]
    assert [tuple(part.shape) for part in parts(dense.to_sparse_csr())] == [(4,), (3,), (3,)]
    assert parts(dense) == []


def test_ten_thousand_entries(holders):
    table = {f"k{i}": torch.zeros(1, device="cuda") for i in range(10_000)}
    begun = time.process_time()
    found = walk({"table": table}).by_device[0]
    assert time.process_time() - begun < 5
    assert len(found) == 10_000
    assert {held.name for held in found} == {f"table[{key!r}]" for key in table}


def test_nothing_is_kept_alive_collected_or_allocated():
    class Thing:
        pass

    thing = Thing()
    thing.x = kib(1)
    ref = weakref.ref(thing.x)
    namespace = {"thing": thing, "loss": (thing.x.requires_grad_() * 2).sum()}
    before = torch.cuda.memory_stats()
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    gc.disable()
    try:
        assert walk(namespace).by_device
        assert not gc.isenabled()
        assert collections == []
        assert torch.cuda.memory_stats() == before
        namespace.clear()
        del thing
        assert ref() is None
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()
        gc.callbacks.pop()


def test_a_search_ends_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        lost = []
        lost.extend((kib(1), lost))
        del lost
        walk({})
        alive = [obj for obj in gc.get_objects() if type(obj) in (ForwardWalk, BackwardSearch)]
    finally:
        gc.enable()
    assert not alive


def test_nothing_to_look_at_without_a_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert walk({"x": 1}).by_device == {}


def test_a_frame_that_the_search_back_ends_at_names_its_variable():
    """A tensor on the stack of a call has no name there.

    A frame that runs ends the search; one that has ended may be a part of a cycle.
    """

    def call():
        logits = object()
        other = object()
        return sys._getframe(), logits, other

    frame, logits, _ = call()
    on_stack = object()
    back = BackwardSearch(None, {id(logits): logits, id(on_stack): on_stack})
    assert not back._ends_at(frame, {id(logits), id(on_stack)})
    assert back.label(id(logits)).path == "local logits of call()"
    assert back.label(id(on_stack)).path == "a local of call()"
