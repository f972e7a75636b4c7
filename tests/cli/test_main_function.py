"""The functions with which a script ends, and their variables behind it."""

import sys
import traceback

import pytest

from nbmem.frontends.cli.main_function import MOST_EVENTS, MainFunction
from nbmem.frontends.cli.script import Script

TRAIN = "def train(args):\n    inner = 2\n    return inner\n"
MAIN = "def main(args=None):\n    outer = 1\n    return train(args)\n"


def ended(source, tmp_path):
    """Run a script; return the functions that were found, and their variables."""
    path = tmp_path / "script.py"
    path.write_text(source)
    main = MainFunction(source.encode(), str(path))
    main.run({"__name__": "__main__", "__file__": str(path)})
    return [(frame.f_code.co_name, {**frame.f_locals}) for frame in main.frames]


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
        "main = __import__('functools').wraps(main)(lambda *a, f=main: f(*a))\nmain()",
    ],
)
def test_the_variables_of_the_last_function_are_kept(tmp_path, last):
    found = ended(TRAIN + MAIN + last + "\n", tmp_path)
    name, variables = found[0]
    assert name == "main"
    assert variables["outer"] == 1


def test_a_function_at_the_end_of_the_last_one_is_found_too(tmp_path):
    found = ended(TRAIN + MAIN + "main()\n", tmp_path)
    assert [name for name, _ in found] == ["main", "train"]
    assert found[1][1]["inner"] == 2


def test_an_earlier_call_of_the_same_function_is_not_the_last(tmp_path):
    main = "def main():\n    train(1)\n    return train(2)\n"
    found = ended(TRAIN + main + "train(0)\nmain()\n", tmp_path)
    assert [(name, variables.get("args")) for name, variables in found] == [
        ("main", None),
        ("train", 2),
    ]


@pytest.mark.parametrize(
    "last",
    [
        "main()\nx = 1",
        "for _ in range(2): main()",
        "if main():\n    x = 1",
        "if __name__ == 'other':\n    main()",
        "main() if False else None",
        "",
    ],
)
def test_nothing_is_kept_where_no_function_ends_the_script(tmp_path, last):
    assert ended(TRAIN + MAIN + last + "\n", tmp_path) == []


def test_a_search_for_it_ends(tmp_path):
    busy = f"def busy():\n    for _ in range({MOST_EVENTS}): len('')\n    return main\n"
    assert ended(TRAIN + MAIN + busy + "busy()()\n", tmp_path) == []
    assert sys.getprofile() is None


def test_a_profiler_of_the_users_stays(tmp_path):
    seen = []
    source = TRAIN + MAIN + "import sys\nsys.setprofile(lambda *_: seen.append(1))\nmain()\n"
    main = MainFunction(source.encode(), "script.py")
    try:
        main.run({"__name__": "__main__", "seen": seen})
        assert main.frames == []
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert seen


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
        assert run.namespace["kept"] == 1
    assert "kept" not in run.namespace


def test_future_statements_hold_for_the_last_statement(tmp_path):
    source = "from __future__ import annotations\ndef main(): pass\nx: unknown = main()\n"
    assert [name for name, _ in ended(source, tmp_path)] == ["main"]


def test_a_syntax_error_is_pythons(tmp_path):
    run = script(tmp_path, "main(\n")
    error = run.run()
    assert isinstance(error, SyntaxError)
    assert error.__traceback__ is None
