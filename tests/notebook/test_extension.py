"""Loading, unloading and what `%nbmem` says."""

import json
import re
import subprocess
import sys

import pytest

import nbmem
from nbmem.frontends.notebook import extension
from nbmem.frontends.notebook.commands import COMMANDS

HEAVY = ("torch", "numpy", "IPython", "bokeh", "ipywidgets", "pynvml", "pandas", "psutil")


def _inside(shell):
    """Return the current state of everything that the extension touches."""
    magics = shell.magics_manager
    return {
        "hooks": {name: list(calls) for name, calls in shell.events.callbacks.items()},
        "cleanup": list(shell.input_transformers_cleanup),
        "lines": list(shell.input_transformer_manager.line_transforms),
        "line": dict(magics.magics["line"]),
        "cell": dict(magics.magics["cell"]),
        "user": {name for name in dir(magics.user_magics) if "mem" in name},
        "completer": sorted(vars(shell.Completer)),
        "names": set(shell.user_ns),
    }


def test_unloading_undoes_everything(shell, recorder):
    before = _inside(shell)
    nbmem.load_ipython_extension(shell)
    assert _inside(shell) != before
    nbmem.unload_ipython_extension(shell)
    assert _inside(shell) == before


def test_unloading_gives_the_user_their_own_magic_back(shell, recorder):
    def memtrace(line):
        return f"mine: {line}"

    shell.register_magic_function(memtrace, "line", "memtrace")
    before = _inside(shell)
    nbmem.load_ipython_extension(shell)
    nbmem.unload_ipython_extension(shell)
    assert _inside(shell) == before
    assert shell.run_line_magic("memtrace", "x") == "mine: x"


def test_loading_twice_changes_nothing(shell, recorder):
    nbmem.load_ipython_extension(shell)
    once = _inside(shell)
    nbmem.load_ipython_extension(shell)
    assert _inside(shell) == once


def test_load_ext_and_unload_ext_work_by_name(shell, recorder, capsys):
    before = _inside(shell)
    assert shell.run_cell("%load_ext nbmem", store_history=True).success
    shell.run_cell("%%memtrace\npass", store_history=True)
    assert "<report of In [2]>" in capsys.readouterr().out
    shell.run_cell("%unload_ext nbmem", store_history=True)
    assert _inside(shell)["hooks"] == before["hooks"]
    assert not shell.run_cell("%%memtrace\npass").success


def test_reloading_keeps_the_last_report_and_the_history(shell, recorder, capsys):
    shell.run_cell("%load_ext nbmem", store_history=True)
    once = _inside(shell)
    shell.run_cell("%%memtrace kept\npass", store_history=True)
    extension._LOADED[shell].hooks.host_rows.append("a cell without a card")
    assert shell.run_cell("%reload_ext nbmem", store_history=True).success
    assert list(extension._LOADED[shell].hooks.host_rows) == ["a cell without a card"]
    extension._LOADED[shell].hooks.host_rows.clear()
    again = _inside(shell)
    assert [len(calls) for calls in again["hooks"].values()] == [
        len(calls) for calls in once["hooks"].values()
    ]
    assert again["lines"] == once["lines"]
    capsys.readouterr()
    shell.run_cell("%nbmem")
    shell.run_cell("%nbmem history")
    written = capsys.readouterr().out
    assert "<report of kept>" in written
    assert "[2]  kept" in written


def test_unloading_inside_a_traced_cell_shows_its_report(run, recorder):
    done = run("%%memtrace\nimport nbmem\nnbmem.unload_ipython_extension(get_ipython())")
    assert done.success
    assert recorder.traces[0].stopped == 1
    assert "<report of In [1]>" in done.out


def test_the_history_has_a_line_for_every_cell(run):
    run("x = 1")
    run("# a comment\n1 / 0")
    run("%%memtrace mine\npass")
    text = run("%nbmem history").out
    assert "[1]  x = 1" in text
    assert "[2]  1 / 0" in text
    assert "ZeroDivisionError" in text
    assert "[3]  mine" in text
    assert "3.00 GiB" in text.splitlines()[-1]  # a traced cell's peak is known


def test_what_only_asks_nbmem_has_no_line(run):
    run("x = 1")
    run("%nbmem help")
    run("%nbmem off\n%nbmem on\ny = 1")
    assert "%nbmem help" not in run("%nbmem history").out
    assert "[3]  %nbmem off" in run("%nbmem history").out


@pytest.mark.parametrize("question", ["%memtrace?", "%%memtrace?", "%nbmem?"])
def test_ipythons_help_shows_ours(run, question):
    assert "Docstring" in run(question).out


def test_without_torch_nothing_is_read_and_there_is_no_line(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setitem(
        sys.modules, "nbmem.capture.record.cell_deltas", None
    )  # an import would raise
    done = run("x = 1")
    assert done.err == ""
    assert "x = 1" not in run("%nbmem history").out


def test_the_cell_that_imports_torch_found_nothing_on_the_card(run, monkeypatch, shell):
    torch = sys.modules["torch"]
    monkeypatch.delitem(sys.modules, "torch")
    shell.user_ns["put"] = lambda: monkeypatch.setitem(sys.modules, "torch", torch)
    run("put()")
    assert "[1]  put()" in run("%nbmem history").out


def test_cells_that_are_not_kept_have_no_line(run):
    run("frontend_internal = 1", store_history=False)
    assert "frontend_internal" not in run("%nbmem history").out


def test_off_and_on_stop_and_start_the_lines(run):
    run("%nbmem off")
    run("not_counted = 1")
    run("%nbmem on")
    run("counted = 1")
    text = run("%nbmem history").out
    assert "not_counted" not in text
    assert "  counted = 1" in text


def test_nbmem_alone_shows_the_last_report_again(run):
    run("%%memtrace again\npass")
    assert "<report of again>" in run("%nbmem").out
    assert "<report of again>" in run("%nbmem report").out


def test_there_is_a_sentence_before_the_first_report(run):
    assert run("%nbmem").err == (
        "nbmem: There is no report yet: no cell has been traced. "
        "Put %%memtrace on the first line of a cell and run it.\n"
    )


def test_save_and_open_make_a_round(run, tmp_path):
    run("%%memtrace kept\npass")
    assert f"Saved to {tmp_path}/a.nbmem." in run(f"%nbmem save {tmp_path}/a.nbmem").out
    run("%%memtrace other\npass")
    assert "<report of kept>" in run(f"%nbmem open {tmp_path}/a.nbmem").out
    assert "<report of kept>" in run("%nbmem").out


def test_export_writes_the_last_recording_in_another_form(run, tmp_path):
    run("%%memtrace kept\npass")
    target = tmp_path / "a b.json"
    assert f"Wrote {target}: cells, phases" in run(f"%nbmem export perfetto '{target}'").out
    assert target.read_text() == "perfetto of kept on None"
    run(f"%nbmem export csv {target} --device 1")
    assert target.read_text() == "csv of kept on 1"
    for line in ("export", "export csv"):
        assert "needs a format and a file" in run(f"%nbmem {line}").err
    assert "'xml' is no format" in run(f"%nbmem export xml {target}").err
    assert "there is no folder" in run(f"%nbmem export csv {tmp_path}/no/x.csv").err


def test_a_missing_file_is_one_sentence_and_keeps_the_last_report(run, tmp_path):
    run("%%memtrace kept\npass")
    done = run(f"%nbmem open {tmp_path}/none.nbmem")
    assert done.success
    assert done.err == f"nbmem: There is no file {tmp_path}/none.nbmem. Check the path.\n"
    assert "<report of kept>" in run("%nbmem").out


def test_a_place_that_cannot_be_written_is_one_sentence(run, tmp_path):
    run("%%memtrace kept\npass")
    done = run(f"%nbmem save {tmp_path}/no/such/folder.nbmem")
    assert done.success
    assert done.err == (
        f"nbmem: {tmp_path}/no/such/folder.nbmem cannot be written: there is no folder "
        f"{tmp_path}/no/such. Make it first. The recording is still in memory.\n"
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "histroy",
            (
                "'histroy' is not a subcommand of %nbmem. Did you mean `%nbmem history`? "
                "`%nbmem help` lists all."
            ),
        ),
        (
            "zzz",
            (
                "'zzz' is not a subcommand of %nbmem. "
                f"There are: {', '.join(command.name for command in COMMANDS)}."
            ),
        ),
        ("on please", "%nbmem on takes nothing after it; 'please' was not understood."),
        ("open", "%nbmem open needs a file: `%nbmem open run.nbmem`."),
    ],
)
def test_a_wrong_subcommand_is_one_sentence(run, line, sentence):
    done = run(f"%nbmem {line}")
    assert done.success
    assert done.err == f"nbmem: {sentence}\n"


def test_help_lists_every_command(run):
    text = run("%nbmem help").out
    assert all(f"%nbmem {command.name}" in text for command in COMMANDS)
    assert text == run("%nbmem --help").out == run("%nbmem -h").out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_explains_itself_and_its_options_within_80_columns(run, command):
    done = run(f"%nbmem {command.name} --help")
    assert done.err == ""
    assert done.out == run(f"%nbmem help {command.name}").out
    flags = [line.split()[0] for line in done.out.splitlines() if line.startswith("--")]
    assert flags == [*(option.flag for option in command.options()), "--help"]
    assert all(re.search(r"--\w", option.flag) and option.help for option in command.options())
    for text in (done.out, run("%nbmem help").out):
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "cell",
    [
        "%%memtrace --help\nran = True",
        "%%memtrace --help",
        "%%memtrace name -h\nran = True",
        "%memtrace --stacks --help",
        "%%time\n%%memtrace --help\nran = True",
        "%%nbmem fit x --help\nran = True",
    ],
)
def test_help_helps_and_runs_nothing(run, recorder, shell, cell):
    done = run(cell)
    assert done.success
    assert done.err == ""
    assert ("--max-peak" in done.out) == ("memtrace" in cell)
    assert "--help " in done.out
    assert "ran" not in shell.user_ns
    assert recorder.traces == []
    assert max(map(len, done.out.splitlines())) <= 80


def _loaded_by(statement):
    look = f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    code = f"import sys, json; {statement}\n{look}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_nbmem_imports_nothing_heavy():
    assert _loaded_by("import nbmem") == []


def test_the_test_of_heavy_imports_would_notice_one():
    assert _loaded_by("import nbmem, numpy") == ["numpy"]


def test_loading_the_extension_imports_neither_torch_nor_numpy():
    loaded = _loaded_by(
        "import nbmem; from IPython.core.interactiveshell import InteractiveShell; "
        "nbmem.load_ipython_extension(InteractiveShell.instance())"
    )
    assert loaded == ["IPython"]


def test_the_commands_help_imports_nothing_heavy():
    loaded = _loaded_by(
        "import io; from nbmem.frontends.cli import main\n"
        "out, sys.stdout = sys.stdout, io.StringIO()\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.stdout = out\n"
    )
    assert loaded == []


def test_a_kernel_that_sends_no_comms_has_no_sidebar(shell, capsys, monkeypatch):
    comm = pytest.importorskip("comm")
    monkeypatch.setattr(shell, "kernel", object(), raising=False)
    monkeypatch.setattr(comm, "create_comm", comm._create_comm)  # as ipykernel 6.17 leaves it
    nbmem.load_ipython_extension(shell)
    assert extension._LOADED[shell].sidebar_state() is None
    nbmem.unload_ipython_extension(shell)
    monkeypatch.setitem(sys.modules, "comm", None)
    nbmem.load_ipython_extension(shell)
    assert extension._LOADED[shell].sidebar_state() is None
    assert capsys.readouterr().err == ""
