"""Warnings of nbmem's work are hidden, and the user's are not."""

import ast
import contextlib
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import nbmem as package
from nbmem.core.runtime.entry_points import entry
from nbmem.core.runtime.fault_isolation import Faults
from nbmem.core.runtime.warning_filter import pass_warnings, suppress_warnings

SOURCES = Path(package.__file__).parent
GUARDED = {
    # By `activate`, by Inductor's planner, and by a remedy in the process of estimates.
    "torch._decomp.decompositions_for_jvp",
    "torch._inductor.compile_fx",
    "torch.distributed.optim",
}
"""Modules of torch that warn while they are imported: nbmem does so where warnings are off."""
PROGRAM = """\
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
rows = 8
model(torch.randn(rows, 64, device="cuda")).sum().backward()
optimizer.step()
print("trained", torch.randn(3, device="cuda").sum().item())
"""
IN_A_KERNEL = """\
import warnings
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
shell.run_cell("import torch\\n%load_ext nbmem")
warnings.simplefilter("error")
ran = [shell.run_cell("%nbmem gpu T4")]
before = list(warnings.filters)  # sympy, which torch imports, has one of its own
ran += [
    shell.run_cell("%%memtrace\\nkept = torch.ones(3, device='cuda')"),
    shell.run_cell("%nbmem gpu off"),
]
assert all(one.success for one in ran)
assert warnings.filters == before
"""


def warns_once():
    warnings.warn("of a library that nbmem calls", UserWarning, stacklevel=1)


@contextlib.contextmanager
def filters(action):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        yield shown


def test_what_foreign_code_calls_is_not_lost_to_a_warning():
    faults = []
    called = entry("this part", on_fault=lambda part, err: faults.append((part, err)))(warns_once)
    with filters("error"):
        called()
        Faults().part("A part", warns_once, None)
    assert faults == []


def test_the_users_registry_is_as_it_was():
    def remembered():
        return {key for key in globals().get("__warningregistry__", {}) if key != "version"}

    with filters("default") as shown:
        warns_once()
        before, version = remembered(), globals()["__warningregistry__"]["version"]
        with suppress_warnings():
            warnings.warn("another", UserWarning, stacklevel=1)
        assert remembered() == before
        warns_once()  # Python has not forgotten that this one was shown
        assert globals()["__warningregistry__"]["version"] == version
        assert len(shown) == 1


def test_another_thread_is_not_silenced():
    with filters("always") as shown, suppress_warnings():
        thread = threading.Thread(target=warns_once)
        thread.start()
        thread.join()
        warns_once()
        assert len(shown) == 1


def test_what_the_program_would_import_by_itself_warns_as_ever():
    with filters("always") as shown, suppress_warnings():
        with pass_warnings():
            warns_once()
        warns_once()
        assert len(shown) == 1


def test_a_file_that_the_user_left_open_still_warns():
    with filters("error"), suppress_warnings(), pytest.raises(ResourceWarning):
        warnings.warn("unclosed file", ResourceWarning, stacklevel=1)


def test_filters_are_restored_and_a_missing_end_silences_no_warning():
    with filters("always") as shown:
        before = list(warnings.filters)
        with suppress_warnings(), suppress_warnings():
            assert len(warnings.filters) == len(before) + 2
        assert warnings.filters == before

        def interrupted():
            suppress_warnings().__enter__()

        interrupted()
        warns_once()
        assert len(shown) == 1


def test_inside_a_block_a_list_that_is_emptied_is_no_fault():
    with filters("always"), suppress_warnings():
        warnings.resetwarnings()


@pytest.mark.torch
def test_a_note_of_the_virtual_card_is_an_error_only_by_name():
    torch = pytest.importorskip("torch")
    from nbmem import virtual

    def read():
        with virtual.activated("T4") as gpu:
            torch.randn(3, device="cuda").sum().item()
            return gpu.notes

    with filters("error"):
        assert read()
        warnings.simplefilter("error", virtual.NbmemWarning)
        with pytest.raises(virtual.NbmemWarning):
            read()
    with filters("always") as shown:
        read()
    assert [one.category for one in shown] == [virtual.NbmemWarning]
    assert shown[0].filename == __file__


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        ("-c", IN_A_KERNEL),
        ("-m", "nbmem", "run", "program.py", "--gpu", "T4"),
        (
            "-m",
            "nbmem",
            "fit",
            "program.py",
            "--vary",
            "rows",
            "--gpu",
            "T4",
            "--between",
            "8",
            "9",
        ),
    ],
    ids=["notebook", "script", "fit"],
)
def test_a_program_under_warnings_as_errors(words, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    # What nbmem starts is told so, too; a notebook's own imports are not nbmem's.
    kept = {} if words[0] == "-c" else {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"}
    flags = ["-X", "dev"] if words[0] == "-c" else ["-X", "dev", "-W", "error"]
    done = subprocess.run(
        [sys.executable, *flags, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCES.parent), **kept},
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "fault of nbmem" not in told
    assert "Warning" not in told


def imported():
    """Return every module of torch that a line of nbmem imports."""
    names = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names |= {alias.name for alias in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
                case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                    names |= {name} if "import_module" in ast.dump(node.func) else set()
    return sorted(name for name in names if name.partition(".")[0] == "torch")


@pytest.mark.torch
@pytest.mark.long
def test_no_other_module_of_torch_warns_while_it_is_imported():
    code = (
        "import importlib, sys, warnings, torch\n"
        "for name in sys.argv[1:]:\n"
        "    with warnings.catch_warnings(record=True) as found:\n"
        "        warnings.simplefilter('always')\n"
        "        try: importlib.import_module(name)\n"
        "        except ImportError: pass\n"
        "    if found: print(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *imported()], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) <= GUARDED
