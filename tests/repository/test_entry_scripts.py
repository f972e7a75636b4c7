"""The two setup commands work before anything is installed."""

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "tools").glob("*.py"))


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Load tools/environment.py with an installer that records calls."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools/environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    module.calls = []

    def create(folder, _interpreter):
        python = module.python_of(folder)
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        module.calls.append("create")

    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "_create", create)
    monkeypatch.setattr(module, "install", lambda _folder, *words: module.calls.append(words))
    return module


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_old_python_can_still_read_the_scripts(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_an_old_python_gets_a_sentence(environment):
    with pytest.raises(SystemExit, match=r"nbmem needs Python 3\.11 or newer; .* is 3\.8\.18"):
        environment.require_python((3, 8, 18))


@pytest.mark.parametrize("script", ["demo.py", "test.py"])
def test_the_scripts_need_nothing_installed(script):
    bare = [sys.executable, "-S", str(ROOT / "tools" / script), "--help"]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_a_second_run_installs_nothing(environment):
    environment.prepare(".venv", "torch", "run")
    first = list(environment.calls)
    environment.prepare(".venv", "torch")
    assert environment.calls == first


def test_what_is_missing_is_added_to_what_is_there(environment):
    environment.prepare(".venv", "torch")
    environment.prepare(".venv", "lab")
    environment.prepare(".venv", "torch", "lab")
    assert environment.calls[0] == "create"
    assert len(environment.calls) == 3
    assert "torch==2.13.0" in environment.calls[2], "pip must see the pin at every call"


def test_changed_lists_are_installed_into_the_same_environment(environment, tmp_path):
    environment.prepare(".venv", "run")
    lists = tmp_path / "pyproject.toml"
    lists.write_text(lists.read_text().replace("nbclient>=0.10", "nbclient>=0.11"))
    environment.prepare(".venv", "run")
    assert environment.calls.count("create") == 1
    assert "nbclient>=0.11" in environment.calls[-1]


def test_fresh_makes_it_anew(environment):
    environment.prepare(".venv", "run")
    environment.prepare(".venv", "run", fresh=True)
    assert environment.calls.count("create") == 2


def test_torch_is_pinned_exactly(environment):
    assert environment.requirements("torch") == ["torch==2.13.0"]


def test_ci_runs_the_test_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "python3 tools/test.py" in script.read_text()
    assert "python3 tools/test.py" in (ROOT / "README.md").read_text()


PROGRAM = """
import time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("ended")
    raise SystemExit(7)
"""
SCRIPT = """
import sys
from environment import hand_over
raise SystemExit(hand_over([sys.executable, "-c", sys.argv[1]]))
"""


def test_after_ctrl_c_the_program_says_how_far_it_came():
    command = [sys.executable, "-c", SCRIPT, PROGRAM]
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes, **heeding) as process:
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == ("ended\n", "")
    assert process.returncode == 7
