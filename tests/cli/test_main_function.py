"""The function with which a script ends, and its variables behind it."""

import contextlib
import importlib.util
import json
import sys
import traceback
from types import SimpleNamespace

import pytest

from nbmem.capture.interpreter.last_call import MOST_EVENTS, LastCall
from nbmem.frontends.cli.main_function import MainFunction
from nbmem.frontends.cli.script import Script
from tests.forked_command import run_forked

TRAIN = "def train(args):\n    inner = 2\n    return inner\n"
MAIN = "def main(args=None):\n    outer = 1\n    return train(args)\n"
DECORATED = """
import contextlib
@contextlib.contextmanager
def opened(): yield
main = opened()(main)
"""


def ended(source, tmp_path):
    """Run a script; return the function that was found, and its variables."""
    path = tmp_path / "script.py"
    path.write_text(source)
    main = MainFunction(source.encode(), str(path))
    main.run({"__name__": "__main__", "__file__": str(path)})
    return main.frame and (main.frame.f_code.co_name, {**main.frame.f_locals})


@pytest.mark.parametrize(
    "last",
    [
        "main()",
        "result = main()",
        "if __name__ == '__main__':\n    x = 1\n    main(x)",
        'if __name__ == "__main__":\n    main()',
        "main(train(3))",
        "import argparse\nmain(argparse.ArgumentParser().parse_args([]))",
        "print(main())",
        "class App:\n    def main(self):\n        outer = 1\n        return train(0)\nApp().main()",
        DECORATED + "main()",
    ],
)
def test_the_variables_of_the_last_function_are_kept(tmp_path, last):
    name, variables = ended(TRAIN + MAIN + last + "\n", tmp_path)
    assert name == "main"
    assert variables["outer"] == 1


def test_a_function_that_a_decorator_may_call_again_is_not_kept(tmp_path):
    again = "def again(function):\n    function()\n    return function()\n"
    assert ended(TRAIN + MAIN + again + "again(main)\n", tmp_path)[0] == "again"


@pytest.mark.parametrize(
    "last",
    [
        "main()\nx = 1",
        "[main() for _ in range(2)]",
        "for _ in range(2): main()",
        "if main():\n    x = 1",
        "if __name__ == 'other':\n    main()",
        "main() if False else None",
        "",
    ],
)
def test_nothing_is_kept_where_no_function_ends_the_script(tmp_path, last):
    assert ended(TRAIN + MAIN + last + "\n", tmp_path) is None


def test_a_search_for_it_ends(tmp_path):
    busy = f"def busy():\n    for _ in range({MOST_EVENTS}): len('')\n    return main\n"
    assert ended(TRAIN + MAIN + busy + "busy()()\n", tmp_path) is None
    assert sys.getprofile() is None


def test_a_profiler_of_the_users_stays(tmp_path):
    seen = []
    source = TRAIN + MAIN + "import sys\nsys.setprofile(lambda *_: seen.append(1))\nmain()\n"
    main = MainFunction(source.encode(), "script.py")
    try:
        main.run({"__name__": "__main__", "seen": seen})
        assert main.frame is None
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert seen


@pytest.mark.parametrize(
    ("path", "looks"),
    [
        ("train", True),
        ("App.main", True),
        ("app.main", True),
        ("app.static", True),
        ("decorated", True),
        ("json.dumps", False),
        ("decoder.decode", False),
        ("print", False),
        ("nothing.at.all", False),
        ("App", False),
        ("number", False),
    ],
)
def test_only_a_function_of_the_users_is_looked_for(path, looks):
    """Python's profiler leaves copies of a library's variables in its frames before 3.13."""

    class App:
        def main(self):
            pass

        static = staticmethod(lambda: None)

    variables = {
        "train": lambda: None,
        "App": App,
        "app": App(),
        "decorated": contextlib.contextmanager(ended),
        "json": json,
        "decoder": json.JSONDecoder(),
        "number": 3,
    }
    call = LastCall({path}, lambda _: False)
    call.begin(variables)
    try:
        assert (sys.getprofile() is not None) == looks
    finally:
        call.end()
    assert sys.getprofile() is None


def test_it_is_not_looked_for_where_a_card_is_in_use(tmp_path, monkeypatch):
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_allocated=lambda: 512)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert ended(TRAIN + MAIN + "main()\n", tmp_path) is None


def test_python_profiles_nothing_while_it_computes(tmp_path):
    source = "import sys\ndef main(): return sys.getprofile()\nactive = main()\n"
    path = tmp_path / "script.py"
    path.write_text(source)
    names = {"__name__": "__main__"}
    MainFunction(source.encode(), str(path)).run(names)
    assert names["active"] is None


def script(tmp_path, source):
    path = tmp_path / "script.py"
    path.write_text(source)
    found = Script(str(path), ())
    found.namespace["__name__"] = "__main__"
    return found


def test_its_variables_are_names_until_the_end_and_then_go(tmp_path, capsys):
    class_ = "class Kept:\n    def __del__(self): print('gone')\n"
    main = "def main():\n    kept, name = Kept(), 2\n    print('end')\n"
    run = script(tmp_path, class_ + main + "name = 1\nmain()\n")
    assert run.run() is None
    assert capsys.readouterr().out == "end\n"
    with run.names_at_end():
        assert "kept" in run.namespace
        assert run.namespace["name"] == 1, "the script's own"
    assert "kept" not in run.namespace
    assert capsys.readouterr().out == "gone\n"


def test_an_exit_with_the_functions_result_is_an_end(tmp_path):
    run = script(
        tmp_path, "import sys\ndef main():\n    code = 3\n    return code\nsys.exit(main())\n"
    )
    assert run.run().code == 3
    with run.names_at_end():
        assert run.namespace["code"] == 3
    assert "code" not in run.namespace


@pytest.mark.parametrize("last", ["main()", "if True: main()"])
def test_an_error_is_told_as_by_python(tmp_path, last):
    run = script(tmp_path, f"def main():\n    kept = 1\n    raise ValueError(2)\n{last}\n")
    error = run.run()
    told = traceback.extract_tb(error.__traceback__)
    assert [(one.name, one.lineno) for one in told] == [("<module>", 4), ("main", 3)]
    with run.names_at_end():
        assert ("kept" in run.namespace) == (last == "main()")
    assert "kept" not in run.namespace


def test_future_statements_hold_for_the_last_statement(tmp_path):
    source = "from __future__ import annotations\ndef main(): pass\nx: unknown = main()\n"
    assert ended(source, tmp_path)[0] == "main"


def test_a_syntax_error_is_pythons(tmp_path):
    run = script(tmp_path, "main(\n")
    error = run.run()
    assert isinstance(error, SyntaxError)
    assert error.__traceback__ is None


FOLLOWED = """
import torch
def train(model, steps):
    kept = []
    for _ in range(steps):
        kept.append(model(torch.ones(8192, 1024, device="cuda")).detach() + 1)
    return steps
def evaluate(model):
    with torch.no_grad():
        return model(torch.ones(8, 1024, device="cuda")).sum()
model = torch.nn.Linear(1024, 1024).cuda()
"""
TORCH = importlib.util.find_spec("torch") is None


@pytest.mark.skipif(TORCH, reason="there is no memory without torch")
@pytest.mark.parametrize(
    "lines",
    [
        "train(model, 9)\nevaluate(model)\n",
        "steps = train(model, 9)\nprint(steps)\n",
        "with torch.no_grad():\n    train(model, 9)\nprint(evaluate(model))\n",
        "if __name__ == '__main__':\n    train(model, 9)\n    evaluate(model)\n",
    ],
)
def test_a_function_that_a_line_calls_has_its_variables_in_tips(tmp_path, lines):
    path, report = tmp_path / "script.py", tmp_path / "report.json"
    path.write_text(FOLLOWED + lines)
    command = ["run", str(path), "--gpu", "T4", "--json", str(report), "--quiet"]
    ran = run_forked(command, tmp_path, {}, 120)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(report.read_text())
    titles = [tip["title"] for tip in found["findings"]]
    assert titles[0].startswith("In train(): `kept` grows by 32.0 MiB"), titles
    assert found["ledger_at_end"]["user_tensors"] < 1 << 20
