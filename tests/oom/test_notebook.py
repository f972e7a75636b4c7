"""Explanations under the traceback of a failed cell."""

import re

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]

IPython = pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

import nbmem

MIB = 1 << 20
SETUP = """
import torch
from torch import nn
layers = [nn.Sequential(nn.Linear(4096, 4096, device="cuda"), nn.GELU()) for _ in range(20)]
model = nn.Sequential(*layers)
del layers
def train(rows):
    x = torch.randn(rows, 4096, device="cuda")
    model(x).sum().backward()
train(8)
model.zero_grad()
"""


@pytest.fixture
def run(capsys):
    """Run cells in a real shell; return outputs and errors."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    nbmem.load_ipython_extension(shell)

    def run_cell(code):
        capsys.readouterr()
        result = shell.run_cell(code, store_history=True)
        written = capsys.readouterr()
        assert "fault of nbmem's" not in written.err, written.err
        return re.sub(r"\x1b\[[\d;]*m", "", written.out), result.error_in_exec

    run_cell(SETUP)
    yield run_cell
    nbmem.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()


def allocated():
    import torch

    return torch.cuda.memory_allocated()


@pytest.mark.usefixtures("named_graphs")
def test_after_free_traceback_the_memory_is_what_it_was_before_the_cell(run):
    before = allocated()
    # Without a trace the block is not known, but what it took from the card.
    for first_line, asked in (("%%memtrace --stacks\n", 468.8), ("", 470.0)):
        out, error = run(f"{first_line}train(30_000)")
        assert type(error).__name__ == "OutOfMemoryError"
        after = out.split("CUDA out of memory. Tried")[1]
        assert f"\nRan out of memory: {asked} MiB asked for, " in after
        assert " free, at In [1], line 8 in train" in after
        kept = allocated() - before
        assert kept > 10 << 30
        assert f"The failure keeps {kept / (1 << 30):.2f} GiB alive" in after
        assert "Ended by" not in after, "the explanation stands beside the report"
        assert "nothing in this recording" not in run("%nbmem tips")[0]
        del error
        run("%nbmem free traceback")
        assert allocated() == before


def test_an_untraced_cell_is_advised_to_trace(run):
    out, _ = run("train(30_000)")
    assert "470.0 MiB were needed from the card, which had" in out
    assert "The cell was not traced. With %%memtrace on its first line" in out
    assert "Largest holders" in out
    assert "model, 40 tensors" in out


def test_what_the_program_itself_catches_and_prints(run):
    out, error = run(
        "try:\n    train(30_000)\nexcept torch.OutOfMemoryError as err:\n"
        "    print('caught', type(err))"
    )
    assert error is None
    assert "An out-of-memory error was caught: 470.0 MiB asked for, " in out
    assert " free, at In [1], line 8 in train" in out
    assert "free traceback" not in out


def test_raised_again_as_another_exception(run):
    out, error = run(
        "try:\n    train(30_000)\nexcept RuntimeError as err:\n"
        "    raise ValueError('too big') from err"
    )
    assert isinstance(error, ValueError)
    assert " free, at In [1], line 8 in train" in out


def test_in_a_thread(run):
    out, error = run(
        "import threading\n"
        "thread = threading.Thread(target=train, args=(30_000,), name='feeder')\n"
        "thread.start(); thread.join()"
    )
    assert error is None
    assert "An out-of-memory error was caught: " in out
    assert "thread feeder" in out


def test_a_cell_without_one_says_nothing(run):
    assert run("train(8)")[0] == ""
    out, _ = run("1 / 0")
    assert "Out of memory" not in out


def test_an_interrupted_cell_says_what_it_left(run):
    before = allocated()
    out, _ = run(
        "def load():\n    held = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "    raise KeyboardInterrupt\nload()"
    )
    assert "Interrupted at In [2], line 3 in load: 1.00 GiB more are allocated than before" in out
    assert "Its frames alone hold 1.00 GiB: %nbmem free traceback gives it back." in out
    run("%nbmem free traceback")
    assert allocated() == before


def test_two_cells_and_two_steps_are_compared(run):
    run("%%memtrace\nsmall = torch.empty(10 << 20, dtype=torch.uint8, device='cuda')")
    run("%%memtrace large one\nlarge = torch.empty(30 << 20, dtype=torch.uint8, device='cuda')")
    for line in ("%nbmem diff 2 3", "%nbmem diff 'In [2]' 'large one'", "%nbmem diff In[2] 3"):
        out, _ = run(line)
        assert "A = In [2]\nB = large one" in out, line
        assert "+30.0 MiB" in out
    out, _ = run("%nbmem diff step 0 step 1")
    assert out == ""


def test_a_peak_above_the_limit_names_what_was_held(run):
    _, error = run("%%memtrace --max-peak 1GiB\ntrain(1000)")
    first, held, largest, before = str(error).splitlines()
    assert first.startswith("In [2] peaked at ")
    assert first.endswith(" above the limit of 1.00 GiB.")
    assert "1.25 GiB weights" in held
    assert largest.startswith("Largest: ")
    assert before == "Before it began: 1.27 GiB allocated."


def test_the_explanation_is_an_output_of_its_own(run, monkeypatch):
    """In JupyterLab the explorer stands for the report, and it draws none."""
    from nbmem.frontends.notebook import display

    bundles = []
    monkeypatch.setattr(display, "show_bundle", lambda bundle, **_: bundles.append(bundle))
    run("%%memtrace\ntrain(30_000)")
    explanation, report = bundles
    for kind in ("text/plain", "text/html"):
        assert "Ran out of memory: " in explanation[kind]
        assert "Ran out of memory" not in report[kind]
