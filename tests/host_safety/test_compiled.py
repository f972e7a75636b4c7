"""Compilers, tracers and transforms in a traced block see torch alone."""

import copy
import gc
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import _dynamo as dynamo
from torch import fx, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

import nbmem
from tests.host_safety.process_state import state, state_differences


@pytest.fixture(autouse=True)
def _nothing_is_left():
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # what torch makes once
    before = state()
    yield
    dynamo.reset()
    assert state_differences(before) == []


class Small(nn.Module):
    """A module with containers, own modules and a checkpoint."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.layers(x)).sum(-1)


def model():
    torch.manual_seed(1)
    return Small()


def numbers(module):
    return [p.tolist() for p in module.parameters()]


def figures(program):
    """Return a program's results and dynamo's counters."""
    dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        value = program()
    counted = {
        kind: dict(counters[kind])
        for kind in ("frames", "stats", "graph_break", "unimplemented", "recompile_limit")
    }
    return value, counted, [str(one.message) for one in warned]


def assert_alike(program):
    outcomes = []
    for traced in (False, True):
        if traced:
            with nbmem.trace(namespace={}) as trace:
                outcomes.append(figures(program))
            assert not [note for note in trace.session.notes if "nbmem lost" in note]
        else:
            outcomes.append(figures(program))
    (*without, warned), (*with_trace, warned_too) = outcomes
    assert with_trace == without
    assert set(warned_too) <= set(warned)  # torch says some things once
    return without


BACKENDS = ["eager", "aot_eager"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_trains(backend, in_place):
    def program():
        plain = model()
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        compiled = plain if in_place else torch.compile(plain, backend=backend)
        if in_place:
            plain.compile(backend=backend)
        for rows in (2, 2, 3, 5):
            optimizer.zero_grad()
            compiled(torch.ones(rows, 4)).sum().backward()
            optimizer.step()
        return numbers(plain)

    _, counted = assert_alike(program)
    assert counted["stats"]["unique_graphs"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_compiled_training_step_breaks_as_often(backend, optimizer):
    def program():
        plain = model()
        opt = optimizer(plain.parameters(), lr=0.1)

        def step(x):
            opt.zero_grad()
            plain.zero_grad()
            loss = plain(x).sum()
            loss.backward()
            opt.step()
            return loss.detach()

        compiled = torch.compile(step, backend=backend)
        losses = [compiled(torch.ones(2, 4)).item() for _ in range(3)]
        return losses, numbers(plain)

    assert_alike(program)


def test_a_collection_inside_a_compiled_function_compiles_nothing_of_nbmems():
    def program():
        plain = model()
        gc.collect()  # or what others left would be finalized inside

        def step(x):
            out = plain(x)
            torch._dynamo.graph_break()
            gc.collect()  # Dynamo calls it as it is, and so what Python calls from there
            return out.sum()

        return torch.compile(step, backend="eager")(torch.ones(2, 4)).item()

    figures(program)  # other callbacks of collections, like hypothesis's, are compiled once
    assert_alike(program)


def test_a_compiled_optimizer_step_is_one_graph():
    def program():
        plain = model()
        opt = torch.optim.Adam(plain.parameters(), lr=0.1)
        plain(torch.ones(2, 4)).sum().backward()
        torch.compile(opt.step, backend="eager")()
        return numbers(plain)

    assert_alike(program)


def test_zero_grad_is_compiled_whole():
    def program():
        plain = model()
        opt = torch.optim.SGD(plain.parameters(), lr=0.1)
        plain(torch.ones(2, 4)).sum().backward()
        torch.compile(opt.zero_grad, backend="eager")()
        torch.compile(plain.zero_grad, backend="eager")()
        return [p.grad for p in plain.parameters()]

    assert_alike(program)


def test_a_model_with_a_full_graph_has_one():
    def program():
        compiled = torch.compile(model(), backend="eager", fullgraph=True)
        return compiled(torch.ones(2, 4)).tolist()

    assert_alike(program)


def test_a_call_inside_what_is_compiled_is_part_of_the_graph():
    def program():
        inner = model()
        compiled = torch.compile(lambda x: inner(x) + inner(x * 2), backend="eager", fullgraph=True)
        return compiled(torch.ones(2, 4)).tolist()

    assert_alike(program)


FIRST_CELL = """
import sys
import torch, nbmem
assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
with nbmem.trace(namespace={}) if sys.argv[1] == "traced" else torch.enable_grad():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()

    step = torch.compile(step, backend="eager")
    for _ in range(3):
        step(torch.ones(2, 4))
from torch._dynamo.utils import counters
print(dict(counters["frames"]), dict(counters["stats"]), len(counters["graph_break"]))
assert sys.meta_path == finders
handler = torch._dynamo.callback_handler
assert not handler.start_callbacks and not handler.end_callbacks and "clear" not in vars(handler)
"""


def test_what_is_compiled_in_the_very_cell_that_imports_the_compiler():
    said = [
        subprocess.run(
            [sys.executable, "-c", FIRST_CELL, how], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        for how in ("plain", "traced")
    ]
    assert said[0] == said[1] != ""


def test_what_was_compiled_before_is_not_compiled_again():
    def before():
        plain = model()
        opt = torch.optim.SGD(plain.parameters(), lr=0.1)

        def step(x):
            opt.zero_grad()
            loss = plain(x).sum()
            loss.backward()
            opt.step()
            return loss.detach()

        compiled = torch.compile(step, backend="eager"), torch.compile(plain, backend="eager")
        for one in compiled * 3:
            one(torch.ones(2, 4))
        return compiled

    outcomes = []
    for traced in (False, True):
        dynamo.reset()
        compiled = before()
        counters.clear()
        with nbmem.trace(namespace={}) if traced else warnings.catch_warnings():
            values = [one(torch.ones(2, 4)).tolist() for one in compiled * 2]
        inside = dict(counters["stats"])
        counters.clear()
        values += [one(torch.ones(2, 4)).tolist() for one in compiled * 2]
        outcomes.append((values, inside, dict(counters["stats"])))
    assert outcomes[1] == outcomes[0]


def test_what_was_compiled_inside_is_not_compiled_again_outside():
    outcomes = []
    for traced in (False, True):
        dynamo.reset()
        plain = model()
        compiled = torch.compile(plain, backend="eager")
        with nbmem.trace(namespace={}) if traced else warnings.catch_warnings():
            compiled(torch.ones(2, 4)).sum().backward()
        counters.clear()
        value = compiled(torch.ones(2, 4)).tolist()
        outcomes.append((value, dict(counters["stats"])))
    assert outcomes[1] == outcomes[0]


# --- tracers and transforms


def symbolic_trace():
    traced = fx.symbolic_trace(model())
    return traced.code, str(traced.graph), traced(torch.ones(2, 4)).tolist()


def exported():
    program = torch.export.export(model(), (torch.ones(2, 4),))
    return str(program.graph), program.module()(torch.ones(2, 4)).tolist()


def jit_traced():
    traced = torch.jit.trace(model(), torch.ones(2, 4))
    graph = re.sub(r"___torch_mangle_\d+\.", "", str(traced.graph))
    return graph, traced.code, traced(torch.ones(2, 4)).tolist()


def scripted():
    made = torch.jit.script(model())
    return made.code, made(torch.ones(2, 4)).tolist()


def by_func():
    plain = model()
    parameters = dict(plain.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(plain, parameters, (x,)).sum()

    gradients = torch.func.grad(loss)(parameters, torch.ones(2, 4))
    per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.ones(2, 1, 4))
    return [{name: one.tolist() for name, one in found.items()} for found in (gradients, per_row)]


def fake():
    with FakeTensorMode():
        plain = model()
        optimizer = torch.optim.Adam(plain.parameters())
        plain(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return [(type(p).__name__, tuple(p.grad.shape)) for p in plain.parameters()]


def on_meta():
    plain = model().to("meta")
    plain(torch.ones(2, 4, device="meta")).sum().backward()
    return [p.grad.device.type for p in plain.parameters()]


def copied():
    plain = model()
    twin = copy.deepcopy(plain)
    twin(torch.ones(2, 4)).sum().backward()
    return numbers(twin), [p.grad for p in plain.parameters()]


def jvp():
    plain = model()
    return [one.tolist() for one in torch.func.jvp(plain, (torch.ones(2, 4),), (torch.ones(2, 4),))]


@pytest.mark.parametrize(
    "program",
    [symbolic_trace, exported, jit_traced, scripted, by_func, fake, on_meta, copied, jvp],
    ids=lambda program: program.__name__,
)
def test_what_follows_a_model_through_its_call_sees_torch_alone(program):
    value, _ = assert_alike(program)
    assert "nbmem" not in str(value)
