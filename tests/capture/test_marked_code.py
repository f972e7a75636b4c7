"""Functions that are compiled again with calls inside."""

import ast
import gc
import importlib.util
import sys
import traceback
import weakref

import pytest

from nbmem.capture.interpreter.marked_code import Hooks, source_of

HOOKS = Hooks("marked_code_hooks", "begins", "returns", "behind")


FUTURE = "from __future__ import annotations\n"
BASE = "class B:\n    def m(self, x): return x\n"
DECORATOR = """
import functools
def f(h):
    @functools.wraps(h)
    def inner(x): return h(x)
    return inner
"""


@pytest.fixture
def seen(monkeypatch):
    """Yield what the hooks were called with: begins, values that are returned, lines."""
    found = []

    class Module:
        __name__ = HOOKS.module

        @staticmethod
        def begins():
            found.append("begins")

        @staticmethod
        def returns(value=None):
            found.append(("returns", value))
            return value

        @staticmethod
        def behind():
            found.append(("behind", sys._getframe(1).f_lineno))

    monkeypatch.setitem(sys.modules, HOOKS.module, Module)
    return found


@pytest.fixture
def load(tmp_path):
    """Import a text as a module; return it."""
    count = iter(range(99))

    def load(text):
        path = tmp_path / f"users{next(count)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def mark(function, names=("f",)):
    source = source_of(function.__code__)
    assert source is not None
    function.__code__ = source.marked(set(names), HOOKS)
    return source


PLAIN = {
    "no return": ("def g(x):\n    x + 1\n", None),
    "a docstring": ('def g(x):\n    """Say what."""\n    return x\n', 3),
    "only a docstring": ('def g(x):\n    """Say what."""\n', None),
    "a bare return": ("def g(x):\n    if x: return\n    return 1\n", None),
    "with": ("def g(x):\n    with open(__file__) as y:\n        return y.readable()\n", True),
    "finally": ("def g(x):\n    try:\n        return x\n    finally:\n        x = 5\n", 3),
    "except": ("def g(x):\n    try: 1 / 0\n    except ZeroDivisionError: return x\n", 3),
    "match": ("def g(x):\n    match x:\n        case 3:\n            return 4\n", 4),
    "a loop": ("def g(x):\n    for i in range(9):\n        if i == x: return i\n", 3),
    "a function inside": ("def g(x):\n    def h(): return x + 1\n    return h()\n", 4),
    "a generator inside": ("def g(x):\n    def h(): yield x\n    return next(h())\n", 3),
    "keywords": ("def g(x, /, a=1, *, b=2): return x + a + b\n", 6),
    "annotations": (f"{FUTURE}def g(x: any) -> thing:\n    y: one = x\n    return y\n", 3),
    "a global": ("n = 0\ndef g(x):\n    global n\n    n += x\n    return n\n", 3),
    "a closure": ("def make(k):\n    def g(x): return x + k\n    return g\ng = make(4)\n", 7),
    "a decorator": (f"{DECORATOR}@f\ndef g(x):\n    return x\n", 3),
    "a method": (f"{BASE}class A(B):\n    def m(self, x): return super().m(x) + 1\ng = A().m\n", 4),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_marked_function_returns_what_it_did(name, load, seen):
    text, expected = PLAIN[name]
    assert load(text).g(3) == expected
    function = load(text).g
    inner = getattr(function, "__wrapped__", getattr(function, "__func__", function))
    before = inner.__code__.co_varnames, inner.__code__.co_firstlineno, inner.__doc__
    mark(inner)
    assert function(3) == expected
    assert [one if type(one) is str else one[0] for one in seen] == ["begins", "returns"]
    assert before == (inner.__code__.co_varnames, inner.__code__.co_firstlineno, inner.__doc__)


CALLS = """
def f(x): return x
def g(x):
    f(x)
    a = [f(i) for i in range(2)]
    if x:
        b = f(x)
    while x:
        x = f(0)
    try:
        f(1)
    finally:
        a += [f(2)]
    len(a)
    return f(x)
"""


def test_behind_each_line_that_calls_is_a_hook(load, seen):
    function = load(CALLS).g
    source = mark(function)
    assert function(3) == 0
    lines = [4, 5, 7, 9, 11, 13]
    assert seen == ["begins", *(("behind", line) for line in lines), ("returns", 0)]
    assert source.calls() == {"f": False, "range": True, "len": False}
    assert source.has_loop


def test_calls_in_loops_and_comprehensions_are_told_apart(load):
    text = "def g(x):\n    for a in c():\n        d(a)\n    [e(i) for i in x]\n    x.h()\n"
    calls = source_of(load(text).g.__code__).calls()
    assert {name for name, in_loop in calls.items() if in_loop} == {"c", "d", "e"}
    assert calls["h"] is False


def test_a_traceback_is_as_it_was(load, seen):
    function = load('def g(x):\n    """Fail."""\n    y = x\n    return 1 / y\n').g

    def failing():
        try:
            function(0)
        except ZeroDivisionError as err:
            return traceback.format_exception(err)[-3:]

    before = failing()
    mark(function)
    assert failing() == before
    assert seen == ["begins"]


def test_variables_live_as_long_as_they_did(load, monkeypatch):
    class Thing:
        pass

    function = load("def g(make):\n    thing = make()\n    other = 1\n    return other\n").g
    alive, things = [], []

    def make():
        thing = Thing()
        things.append(weakref.ref(thing))
        return thing

    class Module:
        begins = behind = staticmethod(lambda: None)

        @staticmethod
        def returns(value=None):
            alive.append(things[0]() is not None)
            return value

    monkeypatch.setitem(sys.modules, HOOKS.module, Module)
    mark(function)
    gc.disable()
    try:
        assert function(make) == 1
        assert alive == [True], "when it returns"
        assert things[0]() is None, "when it has returned"
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "text",
    [
        "def g(): yield 1\n",
        "async def g(): return 1\n",
        "g = lambda: 1\n",
        "exec(compile('def g(): return 1', '<string>', 'exec'))\n",
    ],
)
def test_what_is_no_plain_function_has_no_source(load, text):
    assert source_of(load(text).g.__code__) is None


def test_a_function_whose_file_has_changed_is_left_alone(load, tmp_path):
    function = load("def g():\n    return 1\n").g
    (tmp_path / "users0.py").write_text("def g():\n    return 2\n")
    assert source_of(function.__code__) is None


@pytest.mark.parametrize(
    ("text", "compiles"),
    [
        ("torch = None\ndef g(x): return torch.compile(x)\n", True),
        ("def g(x): x.compile()\n", True),
        ("def k():\n    from torch import nn, compile\ndef g(x): return x\n", True),
        ("import re\ndef g(x): return re.compile(x)\n", False),
        ("def g(compiled): return compiled\n", False),
    ],
)
def test_a_file_that_compiles_is_known(load, text, compiles):
    assert source_of(load(text).g.__code__).compiles is compiles


def test_a_marked_function_runs_where_nbmem_is_not(load, seen, monkeypatch):
    function = load("def g(x):\n    f(x)\n    return x\ndef f(x):\n    return\n").g
    mark(function)
    monkeypatch.delitem(sys.modules, HOOKS.module)
    assert function(3) == 3
    assert not seen


def test_a_file_is_parsed_once_for_all_of_its_functions(load, seen, monkeypatch):
    body = "    x += 1\n" * 20 + "    f(x)\n"
    text = "".join(f"def g{i}(x):\n{body}" for i in range(50)) + "def f(x): pass\n"
    module, parsed, parse = load(text), [], ast.parse

    def counted(text, *args, **kwargs):
        parsed.append(text.count("\n"))
        return parse(text, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", counted)
    for i in range(50):
        mark(getattr(module, f"g{i}"))
    assert sum(parsed) < 6 * text.count("\n")  # the lines of each function, a few times
    module.g7(1)
    assert seen == ["begins", ("behind", 176), ("returns", None)]
