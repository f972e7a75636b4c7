"""`nbmem strip`: reports become text without times for git."""

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nbmem.frontends.cli import main
from nbmem.frontends.cli.strip import stripped
from nbmem.views.mime_bundle import mimebundle
from nbmem.views.mime_types import MIME
from tests.views import sample_reports as sample


def slower(report):
    """Return the run as on a slower machine."""
    phases = tuple(replace(row, t1_ns=row.t1_ns + 3_000_000) for row in report.phases)
    return replace(report, duration_ns=2 * report.duration_ns, phases=phases)


def notebook(report, more="# text é"):
    """Save a notebook as a front end does."""
    outputs = [
        {"data": mimebundle(report), "metadata": {}, "output_type": "display_data"},
        {"data": {"text/plain": ["1.50 s"]}, "metadata": {}, "output_type": "execute_result"},
    ]
    cells = [
        {"cell_type": "code", "id": "a", "metadata": {}, "outputs": outputs, "source": ["x"]},
        {"cell_type": "markdown", "id": "b", "metadata": {}, "source": [more]},
    ]
    whole = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    return f"{text}\n".encode()


def test_a_report_becomes_its_text_and_the_rest_stays():
    found = json.loads(stripped(notebook(sample.cnn())))
    code, prose = found["cells"]
    assert list(code["outputs"][0]["data"]) == ["text/plain"]
    text = "".join(code["outputs"][0]["data"]["text/plain"])
    assert text.startswith("Peak 1.76 GiB of 79.18 GiB: fits an NVIDIA H100")
    assert " ms" not in text
    assert code["outputs"][1]["data"] == {"text/plain": ["1.50 s"]}
    assert prose["source"] == ["# text é"]
    assert stripped(stripped(notebook(sample.cnn()))) == stripped(notebook(sample.cnn()))


def test_two_runs_of_a_cell_are_the_same_for_git():
    assert notebook(sample.cnn()) != notebook(slower(sample.cnn()))
    assert stripped(notebook(sample.cnn())) == stripped(notebook(slower(sample.cnn())))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"cells": []}',
        b"\x00\xff",
        MIME.encode(),
        json.dumps({"cells": [{"outputs": 1}], MIME: 1}).encode(),
        json.dumps([MIME]).encode(),
    ],
)
def test_anything_else_stays_to_the_byte(data):
    assert stripped(data) == data


def test_git_compares_and_keeps_what_is_left(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        return subprocess.run(
            ["git", *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    git("config", "user.name", "x")
    git("config", "user.email", "x@example.org")
    git("config", "filter.nbmem.clean", f'"{sys.executable}" -m nbmem strip')
    (tmp_path / ".gitattributes").write_text("*.ipynb filter=nbmem\n")
    (tmp_path / "run.ipynb").write_bytes(notebook(sample.cnn()))
    git("add", ".")
    git("commit", "-qm", "first")
    assert MIME not in git("show", "HEAD:run.ipynb")
    assert MIME in (tmp_path / "run.ipynb").read_text(encoding="utf-8")
    (tmp_path / "run.ipynb").write_bytes(notebook(slower(sample.cnn())))
    assert git("diff", "--stat") == ""
    (tmp_path / "run.ipynb").write_bytes(notebook(slower(sample.cnn()), more="# other"))
    changed = [line for line in git("diff").splitlines() if line[:2] in {"+ ", "- "}]
    assert len(changed) == 2


def test_the_command_reads_a_file_or_its_input(tmp_path, monkeypatch, capsysbinary):
    data = notebook(sample.cnn())
    (tmp_path / "run.ipynb").write_bytes(data)
    assert main(["strip", str(tmp_path / "run.ipynb")]) == 0
    assert capsysbinary.readouterr().out == stripped(data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert main(["strip"]) == 0
    assert capsysbinary.readouterr().out == stripped(data)
