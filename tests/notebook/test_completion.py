"""Tab completion of nbmem's lines in a real shell."""

import pytest
from IPython.core.completer import provisionalcompleter

import nbmem
from nbmem.frontends.notebook.commands import COMMANDS
from nbmem.frontends.notebook.options import OPTIONS

FLAGS = {*(option.flag for option in OPTIONS), "--help"}


def tab(shell, text, offset=None):
    """Return the completions that both of IPython's calls offer."""
    offset = len(text) if offset is None else offset
    with provisionalcompleter():
        offered = list(shell.Completer.completions(text, offset))
    if "\n" not in text:
        typed, older = shell.complete(None, text, offset)
        assert [(one.start, one.text) for one in offered] == [
            (offset - len(typed), word) for word in older
        ]
    return {(text[: one.start] + one.text).split()[-1] for one in offered}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%nbmem hi", {"history"}),
        ("%nbmem o", {"open", "on", "off"}),
        ("%nbmem ", {*(command.name for command in COMMANDS), "--help"}),
        ("%nbmem nothing ", set()),
        ("%nbmem gpu a100", {"A100-80GB", "A100-40GB"}),
        ("%nbmem gpu of", {"off"}),
        ("%nbmem top 5", set()),
        ("%nbmem export p", {"perfetto"}),
        ("%nbmem export csv steps --d", {"--device"}),
        ("%nbmem explain checkpoint_", {"checkpoint_kept", "checkpoint_on_gpu"}),
        ("%nbmem mute card_empty --", {"--session", "--help"}),
        ("%nbmem report --", {"--device", "--help"}),
        ("%nbmem help mem", {"memtrace"}),
        ("%nbmem layers net --sort forward", {"forward_flops"}),
        ("%%nbmem fit batch --be", {"--between"}),
        ("%nbmem estimate llama-3.2", {"llama-3.2-1b", "llama-3.2-3b"}),
        ("%%nbmem plan --gpu=l40", {"--gpu=L40", "--gpu=L40S"}),
        ("%%memtrace --", FLAGS),
        ("%%memtrace --stacks --s", {"--save"}),
        ("%%memtrace --stacks --p", {"--private"}),
        ("%nbmem save a.nbmem --", {"--private", "--help"}),
        ("%nbmem export csv a --p", {"--private"}),
        ("%%memtrace run --gpu rtx-5", {"RTX-5080", "RTX-5090"}),
        ("%memtrace --st", {"--stacks"}),
    ],
)
def test_tab_offers_what_may_stand_there_and_nothing_else(shell, line, offered):
    nbmem.load_ipython_extension(shell)
    assert tab(shell, line) == offered


def test_names_are_those_that_fit(shell):
    nbmem.load_ipython_extension(shell)
    shell.user_ns.update(batch=4, flag=True, losses=[], name="x", tool=len, _hidden=[])
    assert tab(shell, "%nbmem free ") == {
        "cache",
        "frameworks",
        "traceback",
        "out",
        "losses",
        "--help",
    }
    assert tab(shell, "%nbmem free losses l") == set()
    assert tab(shell, "%%nbmem plan --batch ") == {"batch"}
    cell = "%%nbmem fit \nwidth = 64\nlabel = 'x'\nfor batch in (1, 2):\n    depth = 3  # layers\n"
    flags = {"--gpu", "--ranks", "--margin", "--between", "--step", "--json", "--html", "--help"}
    flags |= {"--model", "--batch", "--method", "--dtype", "--optimizer", "--bits", "--lora-rank"}
    flags |= {"--lora-targets", "--no-checkpointing", "--no-autocast", "--engine"}
    assert tab(shell, cell, len("%%nbmem fit ")) == {"width", "depth", "batch", *flags}


def test_models_and_tensors_are_told_by_their_types(shell):
    torch = pytest.importorskip("torch")
    nbmem.load_ipython_extension(shell)
    shell.user_ns.update(net=torch.nn.Linear(2, 2), nine=9, batch=torch.ones(2))
    assert tab(shell, "%nbmem layers n") == {"net"}
    assert tab(shell, "%nbmem layers net --input b") == {"batch"}


def test_cells_and_files(run, recorder, shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.nbmem", "a.txt", "long run.nbmem", ".hidden.nbmem"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.pickle").touch()
    run("%%memtrace\nx = 1")
    run("%%memtrace train\nx = 2")
    assert tab(shell, "%nbmem diff t") == {"train"}
    assert tab(shell, "%nbmem diff 1 ") >= {"2", "train", "a.nbmem", "sub/"}
    assert tab(shell, "%nbmem open a") == {"a.nbmem"}
    assert tab(shell, "%nbmem open sub/") == {"sub/b.pickle"}
    assert shell.complete(None, "%nbmem open l", 13)[1] == ['"long run.nbmem"']
    assert tab(shell, "%nbmem export html a") == {"a.nbmem", "a.txt"}
    assert tab(shell, "%%memtrace --save a.t") == {"a.txt"}


@pytest.mark.parametrize("line", ["%memtrace --stacks val", "%memtrace val", "%memtrace len(val"])
def test_a_statement_is_completed_as_python(shell, line):
    shell.Completer.use_jedi = False  # it may take longer than IPython waits for it
    nbmem.load_ipython_extension(shell)
    shell.user_ns["value_of_mine"] = 1
    with provisionalcompleter():
        offered = list(shell.Completer.completions(line, len(line)))
    assert [line[: one.start] + one.text for one in offered] == [f"{line}ue_of_mine"]
    assert shell.complete(None, line, len(line))[1] == ["value_of_mine"]


def test_other_lines_are_ipythons(shell):
    shell.Completer.use_jedi = False
    nbmem.load_ipython_extension(shell)
    shell.user_ns["value_of_mine"] = 1
    assert tab(shell, "%nbmem history\nvalue_of") == {"value_of_mine"}
    assert tab(shell, "%time value_of") == {"value_of_mine"}
    assert tab(shell, "%nbm") == {"%nbmem", "%%nbmem"}


def test_a_fault_leaves_the_line_to_ipython(shell, monkeypatch):
    shell.Completer.use_jedi = False
    nbmem.load_ipython_extension(shell)
    monkeypatch.setattr("nbmem.frontends.notebook.completion.find_completions", None)
    shell.user_ns["value_of_mine"] = 1
    assert tab(shell, "value_of") == {"value_of_mine"}


def test_unloading_takes_the_completions_away(shell):
    nbmem.load_ipython_extension(shell)
    nbmem.unload_ipython_extension(shell)
    assert "history" not in shell.complete(None, "%nbmem hi", 9)[1]
