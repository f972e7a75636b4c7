"""Bad input on the command line: one clear sentence each, and exit code 2."""

import io
import pickle
import sys
import zipfile

import pytest

from nbmem.frontends.cli.subcommand import print_message, write_out

pytestmark = pytest.mark.torch

_USAGE = "`nbmem run --help` lists what can be given."


def _sentence(done):
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line.removeprefix("nbmem: ")


def test_a_missing_script(nbmem):
    assert _sentence(nbmem("run", "none.py")) == "There is no script none.py. Check the path."


def test_a_folder_for_a_script(nbmem, tmp_path):
    (tmp_path / "sub").mkdir()
    assert _sentence(nbmem("run", "sub")) == "sub is a folder. Name the script inside it."


def test_an_unknown_card_names_the_known_ones(nbmem, script):
    sentence = _sentence(nbmem("run", script("print('never')\n"), "--gpu", "H1000"))
    assert "'H1000'" in sentence
    assert "H100 80GB" in sentence


def test_an_unknown_option_says_how_to_pass_it_to_the_script(nbmem, script):
    assert _sentence(nbmem("run", script(""), "--epochs", "3")) == (
        "nbmem run does not know --epochs 3. If that is for the script, put -- before it: "
        f"`nbmem run SCRIPT -- --epochs 3`. {_USAGE}"
    )


def test_an_option_without_its_value(nbmem, script):
    assert _sentence(nbmem("run", script(""), "--json")) == (
        "--json needs a value: `--json FILE`. It means: write the report as JSON (a stable form)."
    )


def test_no_script_at_all(nbmem):
    assert _sentence(nbmem("run")) == (f"The following arguments are required: SCRIPT. {_USAGE}")


def test_an_unknown_command(nbmem):
    assert "'rnu'" in _sentence(nbmem("rnu"))


def test_a_place_that_cannot_be_written_is_found_before_the_script_runs(nbmem, script):
    done = nbmem("run", script("print('never')\n"), "--json", "no/such/out.json")
    assert "--json no/such/out.json cannot be written: there is no folder" in _sentence(done)


@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_missing_file(nbmem, command):
    assert "none.nbmem" in _sentence(nbmem(command, "none.nbmem"))


@pytest.mark.parametrize("command", ["report", "replay"])
@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04\x95"])
def test_a_file_of_another_kind(nbmem, tmp_path, command, content):
    (tmp_path / "x.pickle").write_bytes(content)
    assert "x.pickle" in _sentence(nbmem(command, "x.pickle"))


@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_hostile_pickle_runs_nothing(nbmem, tmp_path, command):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"segments": [Evil()]}))
    assert "x.pickle" in _sentence(nbmem(command, "x.pickle"))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_truncated_session(nbmem, script, train, tmp_path, command):
    assert nbmem("run", script(train), "--gpu", "L4", "--save", "a.nbmem").returncode == 0
    whole = (tmp_path / "a.nbmem").read_bytes()
    (tmp_path / "b.nbmem").write_bytes(whole[: len(whole) // 2])
    assert "b.nbmem" in _sentence(nbmem(command, "b.nbmem"))


def test_a_session_of_a_newer_format(nbmem, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.nbmem", "w") as archive:
        archive.writestr("session.json", '{"format": 99}')
    assert "session format 99" in _sentence(nbmem("report", "x.nbmem"))


def test_help_shows_the_exit_codes(nbmem):
    done = nbmem("--help")
    assert done.returncode == 0
    assert "exit codes" in done.stdout
    for command in ("run", "report", "replay", "gpus", "demo"):
        assert command in done.stdout


def test_what_a_pipe_on_windows_cannot_hold_is_a_question_mark(monkeypatch):
    """Python writes into a pipe there in the system's old encoding."""
    for write, name, text in (
        (write_out, "stdout", "gr\xf6\xdfe \u2192 8 MiB\n"),
        (print_message, "stderr", "nbmem: gr\xf6\xdfe \u2192 8 MiB\n"),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="")
        monkeypatch.setattr(sys, name, stream)
        write("gr\xf6\xdfe \u2192 8 MiB")
        assert stream.buffer.getvalue() == text.replace("\u2192", "?").encode("cp1252")
