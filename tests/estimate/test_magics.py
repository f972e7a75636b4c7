"""`%%nbmem fit`, `%%nbmem plan` and `%nbmem layers` in a shell."""

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from nbmem.frontends.notebook.commands import estimates

CELL = """rows = 4
import torch
x = torch.zeros(rows, 1 << 20, device="cuda")
"""


def test_fit_answers_under_the_cell_and_runs_nothing_here(run, tmp_path):
    page = tmp_path / "fit.html"
    output = run(f"%%nbmem fit rows --gpu T4 --between 4 16 --html '{page}'\n{CELL}")
    assert "It fits on a Tesla T4 for every value of rows up to 16" in output.out
    assert "nbmem: fit rows: 4: " in output.err  # a terminal's progress
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "rows" not in run.names
    assert "x" not in run.names


def test_with_one_percent_sign_it_is_the_cell_above(run):
    assert "There is no cell above" in run("%nbmem plan").err
    run(f"%%memtrace\n{CELL}")  # it fails: there is no card
    run("%nbmem history")
    output = run("%nbmem fit rows --gpu T4 --between 4 16")
    assert "It fits on a Tesla T4 for every value of rows up to 16" in output.out
    assert "It fits as it is: 114.0 MiB" in run("%nbmem plan --gpu T4").out


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("%%nbmem fit rows\nrows = 1\nrows = 2", "assigned more than once (lines 2, 3)"),
        ("%%nbmem fit rows\nrows = 2 * 3", "not assigned as a whole number at the top level"),
        ("%%nbmem fit rows\nx = 3", "rows is not assigned in the cell and the notebook has no"),
        ("%%nbmem fit depth\nx = 3", "depth is 3 in the notebook, but the cell does not use it"),
        ("%%nbmem fit\nx = 3", "The following arguments are required: VARIABLE"),
        ("%%nbmem fit x --gpu T5\nx = 3", "T5"),
        ("%%nbmem fit x --margin 2x\nx = 3", "--margin 2x is not a percentage"),
        ("%%nbmem fit x\nx = 3\nawait y", "(line 3). A top-level await cannot be estimated."),
        (
            "%%nbmem fit 32\nx = 32",
            "A number that stands in the program needs a name first: `batch",
        ),
        ("%nbmem fit x", "x is not assigned in the cell and the notebook has no"),
        ("%%nbmem history\nx = 3", "takes no cell"),
        ("%nbmem layers x", "x is not a torch.nn.Module of this notebook"),
    ],
)
def test_a_mistake_is_a_sentence(run, cell, sentence):
    run("depth = 3")
    output = run(cell)
    assert sentence in output.err
    assert "Traceback" not in output.err + output.out


def test_after_an_interrupt_what_was_known_stays(monkeypatch, capsys):
    put = []
    handle = SimpleNamespace(update=lambda bundle, **_: put.append(bundle["text/plain"]))
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: handle)
    answer = SimpleNamespace(_repr_mimebundle_=lambda: {"text/plain": "so far", "text/html": ""})
    progress = estimates.EstimateProgress(SimpleNamespace(kernel=object()), "plan")
    with progress:
        progress.add_line("as it is")
        progress.partial(answer, "1 run, at most 3 more, about 4 s")
        progress.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert put[-2] == "plan: 1 run, at most 3 more, about 4 s\nso far"
    assert put[-1] == "plan: interrupted after 1 run\nso far"
    assert "What was known by then stands in the output." in capsys.readouterr().err


def test_a_cell_that_is_estimated_is_no_row_of_the_history(run):
    run(f"%%nbmem fit rows --gpu T4 --between 4 8\n{CELL}")
    assert "rows = 4" not in run("%nbmem history").out


def test_layers_shows_a_model_of_the_notebook(run):
    run("from torch import nn\nnet = nn.Sequential(nn.Linear(8, 4))")
    output = run("%nbmem layers net --input 8 --batch 2")
    assert "8 x 4 + 4" in output.out
    assert "net: Sequential, for an input of (2, 8)" in output.out


def test_a_language_model_needs_no_cell(run, here, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    from nbmem.estimates.language_models import question

    monkeypatch.setattr(question, "EstimateProcess", here.EstimateProcess)
    sizes = '{"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 1, "vocab_size": 512}'
    (tmp_path / "config.json").write_text(sizes)
    output = run(f"%nbmem estimate '{tmp_path}' --method full --seq 32 --gpu L4")
    assert "Full fine-tuning of" in output.out
    assert "= process, as in nvidia-smi" in output.out
    assert "Would it run on another card?" in output.out
    assert "one percent sign" in run("%%nbmem fit context --model gpt2\nx = 1").err


@pytest.mark.parametrize("magic", ["%%nbmem fit rows", "%%nbmem plan"])
def test_the_process_of_a_question_starts_before_the_questions_imports(run, monkeypatch, magic):
    from nbmem.estimates.runs import worker_processes

    calls = []
    monkeypatch.setattr(worker_processes, "prepare", lambda: calls.append("process"))
    first = "nbmem.estimates.options"
    monkeypatch.setitem(sys.modules, first, None)  # its import fails
    assert f"import of {first} halted" in run(f"{magic}\n{CELL}").err
    assert calls == ["process"]
    run(f"{magic} --engine torch\n{CELL}")  # it has processes of its own
    assert calls == ["process"]
