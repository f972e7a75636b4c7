"""The variables of functions that the functions of a traced cell call."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="there is no memory without torch")

import nbmem
from nbmem.capture.hooks import nested_calls
from nbmem.capture.hooks.nested_calls import LOOKS_IN_LOOP, MAX_CALLS
from nbmem.capture.record.recorder import Recorder
from nbmem.frontends.notebook.extension import loaded_tracer
from nbmem.report.analysis.before_return import ledger_before_return
from nbmem.report.ledger.card_ledger import CardLedger
from tests.ipython_shell import shell_on_virtual_card

MIB = 1 << 20
FUNCTIONS = """
import contextlib

def mib(count):
    return torch.ones(count, 1024, 256, device="cuda")

def train(steps):
    kept = []
    for step in range(steps):
        kept.append(mib(32))
    return steps

def main(steps=4):
    first = mib(8)
    train(steps)
    return first.sum()

class Trainer:
    def __init__(self):
        self.kept = []

    def fit(self, steps):
        for step in range(steps):
            self.kept.append(mib(32))
        mine = mib(32)

    @torch.no_grad()
    def evaluate(self, steps):
        outputs = [mib(32) for _ in range(steps)]
        return len(outputs)

def with_trainer(steps):
    trainer = Trainer()
    trainer.fit(steps)

def with_decorator(steps):
    Trainer().evaluate(steps)

def epoch(rows):
    for _ in range(1):
        batch = mib(rows)
    del _

def epochs(count):
    history = []
    for number in range(count):
        epoch(16)
        history.append(mib(1))

def step(x):
    hidden = x + 1
    for _ in range(1):
        out = hidden + 1
    return out

def steps(count):
    x = mib(16)
    for _ in range(count):
        x = step(x)

def fails(steps):
    for step in range(steps):
        lost = mib(32)
    raise ValueError("mine")

def catches():
    for _ in range(3):
        with contextlib.suppress(ValueError):
            fails(4)
    train(2)

def failing():
    first = mib(8)
    fails(4)

def three(steps):
    outer = mib(4)
    main(steps)
"""


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """Have Dynamo not compiled anything yet, as in a process of its own."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        monkeypatch.delitem(utils.counters, "frames", raising=False)


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch, "T4") as shell:
        shell.run_cell(FUNCTIONS, store_history=True)
        yield shell


@pytest.fixture
def session(shell):
    def session(cell):
        shell.run_cell(f"%%memtrace\n{cell}", store_history=True)
        assert not nested_calls._watching
        return loaded_tracer(shell).last.session

    return session


def cut(session):
    """Return the function that was looked at, those that called it, and sizes by name."""
    ledger = ledger_before_return(CardLedger(session))
    callers = session.facts["before_return"].get("callers", [])
    sizes = {held.name: held.size // MIB for held in ledger.storages}
    return session.devices[0].before_return.function, callers, sizes


def test_the_variables_of_a_function_that_a_function_calls_have_names(shell, session):
    own = shell.user_ns["train"].__code__
    found = session("main(4)")
    function, callers, sizes = cut(found)
    assert function == "train"
    assert callers == [{"function": "main", "variables": ["first"]}]
    assert sizes == {**{f"kept[{i}]": 32 for i in range(4)}, "first": 8}
    assert shell.user_ns["train"].__code__ is own
    then, ledger = found.devices[0].before_return, CardLedger(found)
    freed = int(ledger.allocated[then.event] - ledger.allocated[then.freed])
    assert freed == 4 * 32 * MIB, "what `train` held, and nothing else"


def test_a_tip_says_whose_variable_it_means(shell, session):
    shell.run_cell(
        "def driver(model):\n    losses = []\n    for _ in range(3):\n"
        "        part(model, losses)\n\n"
        "def part(model, losses):\n    for _ in range(3):\n        own = mib(1)\n"
        "        losses.append(model(torch.ones(8192, 1024, device='cuda')))\n"
        "model = torch.nn.Linear(1024, 1024).cuda()",
        store_history=True,
    )
    shell.run_cell("def main():\n    driver(model)", store_history=True)
    session("main()")
    first = loaded_tracer(shell).last.report().findings[0]
    assert first.title.startswith("In driver(): `losses`"), first.title


@pytest.mark.parametrize(
    ("cell", "function", "names"),
    [
        ("with_trainer(3)", "fit", {"self.kept[0]", "self.kept[1]", "self.kept[2]", "mine"}),
        ("with_decorator(3)", "evaluate", {"outputs[0]", "outputs[1]", "outputs[2]"}),
        ("three(2)", "train", {"kept[0]", "kept[1]", "first", "outer"}),
    ],
)
def test_methods_decorated_functions_and_longer_chains(session, cell, function, names):
    found = cut(session(cell))
    assert found[0] == function
    assert set(found[2]) == names


def test_a_function_that_knows_what_came_since_is_preferred(session):
    """`epochs` holds less than each `epoch` did, and more of it at its own end."""
    function, callers, sizes = cut(session("epochs(20)"))
    assert function == "epochs"
    assert not callers
    assert [sizes[f"history[{i}]"] for i in range(20)] == [1] * 20


def test_the_looks_at_a_function_in_a_loop_are_few(session, monkeypatch):
    looks = []
    look = Recorder._before_return
    monkeypatch.setattr(
        Recorder, "_before_return", lambda self, name: (looks.append(name), look(self, name))[1]
    )
    session("def all():\n    for rows in range(8, 64, 4): epoch(rows)\nall()")
    assert looks.count("epoch") == LOOKS_IN_LOOP


def test_a_function_that_computes_from_tensors_is_no_place_to_look(session):
    function, _, sizes = cut(session("steps(3)"))
    assert function == "steps"
    assert set(sizes) == {"x"}


def test_a_function_without_a_step_of_the_model_is_no_place_to_look(shell, session):
    """A function that builds something is left out; that is no growth."""
    shell.run_cell(
        "def build():\n    made = []\n    for _ in range(3): made.append(mib(32))\n"
        "def outer():\n    first = model(mib(1))\n    build()\n    second = mib(99)\n"
        "model = torch.nn.Linear(256, 256).cuda()",
        store_history=True,
    )
    assert cut(session("outer()"))[0] == "outer"
    session("def other():\n    build()\n    model(mib(1))\nother()")
    assert loaded_tracer(shell).last.session.devices[0].before_return.function == "build"


def test_the_bytes_are_what_they_are_without(shell, session, monkeypatch):
    cells = ["main(4);", "with_trainer(3)", "epochs(5)", "steps(3)", "catches()", "three(2)"]

    def events():
        torch.cuda.empty_cache()
        found = [session(cell).devices[0].events for cell in cells]
        return [(list(one.action), list(one.size)) for one in found]

    events()  # the context and its first blocks
    looked = events()
    monkeypatch.setattr(nested_calls.NestedCalls, "watch", lambda self, function: None)
    assert events() == looked


def test_values_and_exceptions_pass(shell, session):
    session("a = [train(3), Trainer().evaluate(2)]\ntry: failing()\nexcept ValueError as e: b = e")
    assert shell.user_ns["a"] == [3, 2]
    assert str(shell.user_ns["b"]) == "mine"


def test_functions_that_failed_have_names(session):
    function, callers, sizes = cut(session("failing()"))
    assert function == "fails"
    assert callers == [{"function": "failing", "variables": ["first"]}]
    assert sizes == {"lost": 32, "first": 8}


def test_what_a_caught_failure_held_is_freed(shell, session):
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        function, _, sizes = cut(session("catches()"))
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()
    assert function == "train"
    assert sizes == {"kept[0]": 32, "kept[1]": 32}


def test_objects_die_when_their_function_returns(shell, session):
    shell.run_cell(
        "import weakref\nclass Thing: pass\n"
        "def make():\n    thing = Thing()\n    for _ in range(2): x = mib(4)\n"
        "    refs.append(weakref.ref(thing))\n"
        "def outer():\n    make()\n    dead.append(refs[0]() is None)\nrefs, dead = [], []",
        store_history=True,
    )
    gc.disable()
    try:
        session("outer()")
    finally:
        gc.enable()
    assert shell.user_ns["dead"] == [True]
    assert isinstance(shell.user_ns["refs"][0], weakref.ref)


def test_a_function_that_is_called_often_runs_as_it_was(shell, session):
    shell.run_cell(
        "codes = []\ndef small(i):\n    for _ in [1]: codes.append(small.__code__)\n"
        f"def many():\n    for i in range({MAX_CALLS} + 10): small(i)\n    return mib(4).sum()",
        store_history=True,
    )
    own = shell.user_ns["small"].__code__
    session("many()")
    codes = shell.user_ns["codes"]
    assert [code is own for code in codes] == [False] * MAX_CALLS + [True] * 10


def test_a_function_with_new_code_keeps_it(shell, session):
    shell.run_cell(
        "def new(): return 2\ndef old(): return 1\n"
        "def swap():\n    old.__code__ = new.__code__\n    return old()\n"
        "def outer():\n    old()\n    return swap()",
        store_history=True,
    )
    session("found = outer()")
    assert shell.user_ns["found"] == 2
    assert shell.user_ns["old"].__code__ is shell.user_ns["new"].__code__


def test_other_threads_and_processes_are_left_alone(shell, session):
    looked = []
    calls = nested_calls.NestedCalls(lambda *_: looked.append(1), lambda: None)
    calls.watch(shell.user_ns["main"])
    try:
        thread = threading.Thread(target=shell.user_ns["main"], args=(2,))
        thread.start()
        thread.join()
        assert not looked
        assert not calls._calls
        calls._place = os.getpid() + 1, threading.get_ident()
        shell.user_ns["main"](2)
        assert not looked
    finally:
        calls.stop()


def test_a_fault_loses_the_names_only(shell, session, monkeypatch):
    def broken(self, frame, value):
        raise RuntimeError

    monkeypatch.setattr(nested_calls.NestedCalls, "ends", broken)
    own = shell.user_ns["train"].__code__
    session("n = train(2)\nmain(2)\nran_on = True")
    assert shell.user_ns["ran_on"]
    assert shell.user_ns["train"].__code__ is own


def test_a_function_that_an_engine_calls_is_not_followed(shell, session):
    shell.run_cell(
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        for _ in range(1): extra = mib(64)\n        return g\n"
        "def outer():\n    x = mib(1).requires_grad_()\n    Double.apply(x).sum().backward()",
        store_history=True,
    )
    assert cut(session("outer()"))[0] == "outer"


COMPILED = """
import torch
def helper(x): return x.sin() + 1
def stepped(x): return helper(x).cos()
def outer():
    helper(torch.ones(2))
    return fast(torch.ones(3))
"""


def test_what_dynamo_compiles_is_as_the_user_wrote_it(tmp_path):
    """Dynamo would give up a function with calls of nbmem inside."""
    from torch._dynamo.testing import CompileCounter

    path = tmp_path / "compiled.py"
    path.write_text(COMPILED)
    names = {}
    exec(compile(COMPILED, str(path), "exec"), names)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter = CompileCounter()
    names["fast"] = torch.compile(names["stepped"], backend=counter, fullgraph=True)
    own, marked = names["helper"].__code__, []
    with nbmem.trace("compiled", namespace=names) as trace:
        calls = trace.follow_functions(names)
        calls.begins({"outer"})
        marked.append(names["helper"].__code__ is not own)
        assert names["outer"]().shape == (3,)
        assert names["helper"].__code__ is own
        calls.stop()
        calls.begins({"outer"})
        marked.append(names["helper"].__code__ is not own)
        calls.stop()
    assert (counter.frame_count, counter.op_count) == (1, 3)
    assert marked == [True, False], "Dynamo may inline what it has read before"


def test_a_saved_session_gives_the_same_tips(shell, session, tmp_path):
    shell.run_cell("def outer():\n    with_trainer(6)", store_history=True)
    shell.run_cell(f"%%memtrace --save {tmp_path / 'run.nbmem'}\nouter()", store_history=True)
    opened = nbmem.open(tmp_path / "run.nbmem")
    assert opened.report().findings == loaded_tracer(shell).last.report().findings
    assert opened.session.facts["before_return"]["callers"]


def test_the_module_of_the_hooks_imports_alone():
    """A marked function may outlive a reload of nbmem."""
    code = "import nbmem.capture.hooks.nested_calls as n; n.entered(); print(n.returns(3))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "3\n"
