"""The reference by which an object leads back to itself."""

import ctypes
import gc
import sys
import weakref

import pytest
import torch

from nbmem.capture.heap import backward_search, walk
from nbmem.capture.heap.cycles import closing_reference
from nbmem.core.session.holders import HolderKind

nn = torch.nn


class Lambda(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.act = lambda x: self.inner(x) + 1


class Bound(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = self.forward


class Child(nn.Module):
    pass


class WithChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child()
        self.child.__dict__["parent"] = self


class Node:
    def __init__(self, parent=None):
        self.parent, self.children = parent, []
        if parent is not None:
            parent.children.append(self)


class Slots:
    __slots__ = ("following",)


class Logger:
    def __init__(self):
        self.callbacks = {"end": self.log}

    def log(self):
        pass


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y


def slots():
    one = Slots()
    one.following = Slots()
    one.following.following = one
    return one


def leaf():
    return Node(Node())


def recursive():
    def search(depth):
        return search(depth - 1) if depth else None

    return search


def kept_error():
    try:
        int("")
    except ValueError as err:
        kept = err
    return kept


@pytest.mark.parametrize(
    ("make", "closing"),
    [
        (Lambda, "Lambda.act"),
        (Bound, "Bound.act"),
        (WithChild, "Child.parent"),
        (lambda: WithChild().child, "Child.parent"),
        (leaf, "Node.parent"),
        (lambda: leaf().parent, "Node.parent"),
        (slots, "Slots.following"),
        (Logger, "Logger.callbacks"),
        (lambda: Exp.apply(torch.ones(2, requires_grad=True)), "ctx.y of Exp"),
        (recursive, "search closed over by search()"),
        (kept_error, "local kept of kept_error()"),
    ],
)
def test_the_attribute_that_closes_a_circle(make, closing):
    assert closing_reference(make()) == closing


def adam():
    return torch.optim.Adam(nn.Linear(2, 2).parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(50))),
        lambda: torch.optim.lr_scheduler.StepLR(adam(), 1),
        lambda: nn.Transformer(8, 2, 2, 2, 8),
        adam,
        Node,
        lambda: [closing_reference],
        object,
    ],
)
def test_an_object_without_a_circle_has_none(make):
    assert closing_reference(make()) is None


class Watched(torch.nn.Module):
    """A model that a hook of its innermost layer refers to."""

    def __init__(self, depth):
        super().__init__()
        layer = torch.nn.Linear(16, 16, bias=False, device="cuda")
        layer.register_forward_hook(lambda *_: self)
        self.weight_bytes = layer.weight.nbytes
        for _ in range(depth):
            layer = torch.nn.Sequential(layer)
        self.net = layer


def test_a_hook_deep_in_a_model_closes_a_cycle(monkeypatch):
    """Followed forward from the layer: three searches of the heap, not forty."""
    searches = []
    referrers = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *of: searches.append(len(of)) or referrers(*of))
    model = Watched(depth=12)
    size = model.weight_bytes
    del model
    gc.disable()
    try:
        (held,) = (one for one in walk({}).by_device[0] if one.size == size)
    finally:
        gc.enable()
    assert [holder.kind for holder in held.holders] == [HolderKind.CYCLE]
    assert len(searches) <= 5


def test_what_something_else_refers_to_is_no_garbage():
    """An iterator of C holds a part of the circle, in a place that no search enters."""
    model = Watched(depth=3)
    size = model.weight_bytes
    kept = weakref.ref(model), map(str, [model])
    del model
    (held,) = (one for one in walk({}).by_device[0] if one.size == size)
    assert HolderKind.CYCLE not in [holder.kind for holder in held.holders]
    assert kept[0]() is not None


def in_own_frame():
    frame = sys._getframe()
    x = torch.zeros(1 << 20, device="cuda")
    return x.nbytes, frame is not None


def in_own_error():
    x = torch.zeros(1 << 20, device="cuda")
    try:
        int("")
    except ValueError as err:
        error = err
    return x.nbytes, error is not None


@pytest.mark.parametrize(("make", "local"), [(in_own_frame, "frame"), (in_own_error, "error")])
def test_the_frame_of_a_function_that_has_ended_is_a_part_of_a_cycle(make, local):
    gc.disable()
    try:
        size, _ = make()
        (held,) = (one for one in walk({}).by_device[0] if one.size == size)
    finally:
        gc.enable()
    (holder,) = held.holders
    assert holder.kind is HolderKind.CYCLE
    assert holder.path == f"a reference cycle through local {local} of {make.__name__}()"


def test_a_frame_that_something_keeps_is_no_garbage_and_its_local_is_named():
    """A reference in C, which no search sees, has the frame of a function that has ended."""

    def ended():
        x = torch.zeros(1 << 20, device="cuda")
        frame = ctypes.py_object(sys._getframe())
        ctypes.pythonapi.Py_IncRef(frame)
        return id(frame.value), x.nbytes

    address, size = ended()
    (held,) = (one for one in walk({}).by_device[0] if one.size == size)
    ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))
    (holder,) = held.holders
    assert (holder.kind, holder.path) == (HolderKind.FRAME, "local x of ended()")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, box):
        ctx.box = box
        box.append(x * 2)
        return box[0]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def test_the_context_of_a_function_names_what_only_a_graph_keeps(monkeypatch):
    """The graph goes on behind the function, so Python's collector does not see the circle."""
    monkeypatch.setattr(backward_search, "BUDGET_S", 60.0)
    size = 3 << 20
    box = []
    small = torch.zeros(1, device="cuda", requires_grad=True)
    made = Scale.apply(small.expand(size // 4), box)
    box.append(made + 1)
    del box, made, small
    gc.collect()
    found = [one for one in walk({}).by_device[0] if one.size == size]
    assert {holder.path for one in found for holder in one.holders} == {"ctx.box of Scale"}


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1024, 512, bias=False)
        self.call = self.forward


def leave_cycles(count):
    """Leave modules in cycles behind, each with a gradient of its own."""
    for _ in range(count):
        module = Wrapped().cuda()
        module.inner.weight.grad = torch.zeros_like(module.inner.weight)
        module.call = module.forward


def test_a_gradient_is_garbage_with_its_parameter(monkeypatch):
    monkeypatch.setattr(backward_search, "BUDGET_S", 60.0)
    gc.disable()
    try:
        leave_cycles(5)
        found = [one for one in walk({}).by_device[0] if one.size == 2 << 20]
        kinds = [{holder.kind for holder in one.holders} for one in found]
        assert kinds == [{HolderKind.CYCLE}] * 10
    finally:
        gc.enable()
        gc.collect()


def test_a_search_without_time_says_nothing(monkeypatch):
    monkeypatch.setattr(backward_search, "BUDGET_S", 0.0)
    gc.disable()
    try:
        leave_cycles(20)
        found = [one for one in walk({}).by_device.get(0, ()) if one.size == 2 << 20]
        assert not [one for one in found if one.holders[0].kind is HolderKind.UNSEEN]
    finally:
        gc.enable()
        gc.collect()


def test_what_in_place_writes_to_a_buffer_keep_is_named_by_it(monkeypatch):
    monkeypatch.setattr(backward_search, "BUDGET_S", 60.0)
    weight = torch.ones(1, 256, device="cuda", requires_grad=True)
    module = nn.Module()
    module.cache = torch.zeros(4096, 256, device="cuda")
    for _ in range(3):
        index = torch.zeros(2048, 256, dtype=torch.long, device="cuda")
        module.cache[:2048].scatter_(0, index, weight.expand(2048, 256) * 2)
    del index
    found = [one for one in walk({"module": module}).by_device[0] if one.size == 4 << 20]
    unseen = [one for one in found if one.holders[0].kind is HolderKind.UNSEEN]
    assert {one.name for one in unseen} == {"in-place writes to module.cache"}
    assert len(unseen) == 3, "the indices"
