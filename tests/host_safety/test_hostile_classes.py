"""Classes that count or exit: a trace runs none of their code."""

from collections import Counter

import pytest
import torch
from torch import nn

import nbmem
from nbmem import virtual

CALLS: Counter[str] = Counter()
"""How often the user's own code ran, by its name."""
OF_MODULES = ("named_parameters", "parameters", "modules", "named_modules", "children", "buffers")
OF_MODULES += ("named_buffers", "named_children", "state_dict", "zero_grad", "train", "extra_repr")
OF_ALL = ("__eq__", "__hash__", "__repr__", "__str__", "__bool__", "__len__", "__getattr__")
OF_ALL += ("__class__", "__getstate__", "__reduce_ex__", "__deepcopy__", "__iter__", "__dir__")
OF_OPTIMIZERS = ("state", "param_groups", "zero_grad", "step", "state_dict", "defaults")


def counting(base, name):
    """Wrap an attribute of a class so that its calls are counted."""
    own = getattr(base, name, None)
    if name in {"__class__", "state", "param_groups", "defaults"}:
        return counting_property(name)

    def method(self, *args, **kwargs):
        CALLS[name] += 1
        if name == "__getattr__" and own is None:
            raise AttributeError(*args)
        if own is None:
            return {"__bool__": True, "__len__": 3}.get(name, NotImplemented)
        return own(self, *args, **kwargs)

    return method


def counting_property(name):
    if name == "__class__":

        def kind(self):
            CALLS[name] += 1
            return type(self)

        return property(kind)

    def read(self):
        CALLS[name] += 1
        return self.__dict__[name]

    def write(self, value):
        self.__dict__[name] = value

    return property(read, write)


def class_with(base, names, make=counting, **more):
    """Make a class whose methods count, or do as `make` says."""
    return type(base.__name__, (base,), {n: make(base, n) for n in names} | more)


def exiting(base, name):
    """Wrap an attribute so that it raises SystemExit once armed."""
    own = getattr(base, name, None)

    def method(self, *args, **kwargs):
        if ARMED:
            raise SystemExit(name)
        return own(self, *args, **kwargs)

    return property(method) if name == "__class__" else method


ARMED: list[bool] = []


class CountingTensor(torch.Tensor):
    """A tensor subclass that counts its calls."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        CALLS[f"function {getattr(func, '__name__', func)}"] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def count_calls(program, *, traced, names):
    """Count the calls of each name in a program, tracing included."""
    CALLS.clear()
    with virtual.activated("T4"):
        torch.ones(1, device="cuda")
        if traced:
            with nbmem.trace(namespace=names) as trace:
                program(names)
            counted = Counter(CALLS)
            assert not [note for note in trace.session.notes if "nbmem lost" in note]
            assert trace.report().peak.allocated
            assert counted == CALLS  # nor does the report
            return counted
        program(names)
        return Counter(CALLS)


def assert_called_alike(program):
    without, with_trace = (
        count_calls(program, traced=traced, names={}) for traced in (False, True)
    )
    assert with_trace == without
    again = count_calls(program, traced=True, names={"twice": [1]})
    assert again == without


def test_a_module_that_counts_is_called_as_often():
    def program(names):
        kind = class_with(nn.Linear, [n for n in (*OF_MODULES, *OF_ALL) if n != "__reduce_ex__"])
        model = names["model"] = kind(4, 4).cuda()
        names["models"] = {"deep": [kind(2, 2).cuda()]}
        optimizer = torch.optim.Adam(nn.Module.parameters(model))
        for _ in range(2):
            model(torch.ones(3, 4, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.zero_grad()
        CALLS["end"] += 1

    assert_called_alike(program)


def test_an_optimizer_that_counts_is_called_as_often():
    def program(names):
        kind = class_with(torch.optim.Adam, (*OF_OPTIMIZERS, *OF_ALL))
        model = names["model"] = nn.Linear(4, 4).cuda()
        optimizer = names["optimizer"] = kind(model.parameters())
        names["all"] = [optimizer]
        for _ in range(2):
            model(torch.ones(3, 4, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert_called_alike(program)


def test_a_tensor_that_counts_is_asked_as_often():
    def program(names):
        x = names["x"] = torch.ones(4, 4, device="cuda").as_subclass(CountingTensor)
        y = names["y"] = (x.requires_grad_() * 2).sum()
        y.backward()
        names["kept"] = [x, {"y": y}]
        nn.Linear(4, 4).cuda()(x)

    assert_called_alike(program)


def test_a_function_mode_and_a_dispatch_mode_see_as_much():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            CALLS[f"function {getattr(func, '__name__', func)}"] += 1
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            CALLS[f"operator {func}"] += 1
            return func(*args, **(kwargs or {}))

    def program(names):
        with Functions(), Operators():
            model = names["model"] = nn.Linear(4, 4).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(3, 4, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            nested(names)

    def nested(names):
        with nbmem.trace(namespace=names):  # one inside, which begins and ends under the modes
            torch.ones(3, device="cuda")

    without, with_trace = (
        count_calls(program, traced=traced, names={}) for traced in (False, True)
    )
    assert with_trace == without


@pytest.mark.parametrize("name", [*OF_MODULES, *OF_ALL])
def test_a_module_whose_methods_exit_is_left_alone(name):
    kind = class_with(nn.Linear, [name], exiting)
    with virtual.activated("T4"):
        model = kind(4, 4).cuda()
        names = {"model": model, "list": [model], "x": torch.ones(3, 4, device="cuda")}
        try:
            ARMED.append(True)
            with nbmem.trace(namespace=names) as trace:
                nn.Linear(4, 4).cuda()(torch.ones(3, 4, device="cuda")).sum().backward()
        finally:
            ARMED.clear()
    assert not [note for note in trace.session.notes if "nbmem lost" in note]
    assert "model.weight" in " ".join(trace.session.names)


@pytest.mark.parametrize(
    "name", ["state_dict", "zero_grad", *(n for n in OF_ALL if n != "__getattr__")]
)
def test_an_optimizer_whose_methods_exit_is_left_alone(name):
    kind = class_with(torch.optim.Adam, [name], exiting)
    with virtual.activated("T4"):
        model = nn.Linear(4, 4).cuda()
        optimizer = kind(model.parameters())
        model(torch.ones(3, 4, device="cuda")).sum().backward()
        optimizer.step()
        try:
            ARMED.append(True)
            with nbmem.trace(namespace={"opt": optimizer, "m": {"deep": optimizer}}) as trace:
                model(torch.ones(3, 4, device="cuda")).sum().backward()
        finally:
            ARMED.clear()
    assert not [note for note in trace.session.notes if "nbmem lost" in note]
    assert "opt" in " ".join(trace.session.names)


class Meta(type):
    """A metaclass that exits on any access to its classes."""

    def __eq__(cls, other):
        raise SystemExit("equal")

    def __hash__(cls):
        raise SystemExit("hash")

    def __instancecheck__(cls, thing):
        raise SystemExit("instance")

    def __subclasscheck__(cls, kind):
        raise SystemExit("subclass")


class Exits(metaclass=Meta):
    """An object that exits on any access."""

    def __getattribute__(self, name):
        raise SystemExit(name)

    __eq__ = __hash__ = __len__ = __iter__ = __bool__ = __repr__ = __getattribute__


def test_objects_that_exit_when_they_are_looked_at_are_not_looked_at():
    with virtual.activated("T4"):
        thing = Exits()
        names = {"thing": thing, "all": [thing, {"deep": thing}], "x": torch.ones(9, device="cuda")}
        with nbmem.trace(namespace=names) as trace:
            nn.Linear(4, 4).cuda()(torch.ones(3, 4, device="cuda")).sum().backward()
        trace.report()
    assert not [note for note in trace.session.notes if "nbmem lost" in note]
    assert " ".join(trace.session.names).count("x ")
