"""Choice of torch's build, and what is printed before the download."""

import importlib
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = ("--editable", ".", "torch==2.13.0", "ipykernel>=6.29")


@pytest.fixture
def installing(monkeypatch):
    """Load tools/installing.py on a Linux without driver, with a fake pip."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "installing", raising=False)
    module = importlib.import_module("installing")
    module.by_pip = []
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module, "_has_driver", lambda: False)
    monkeypatch.setattr(module, "_pip_has_sources", lambda: False)
    monkeypatch.setattr(module, "_by_pip", lambda _folder, words: module.by_pip.append(words))
    return module


@pytest.fixture
def uv(installing, monkeypatch, tmp_path):
    """Provide a fake uv that records its calls."""
    calls = tmp_path / "calls"

    def put(*, reaches):
        program = tmp_path / "uv"
        code = 0 if reaches else 2
        output = "echo ' + torch==2.13.0+cpu' >&2"
        program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{output}\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setattr(installing.shutil, "which", lambda _name: str(program))
        return calls

    return put


def answer_dry_run(installing, monkeypatch, rows):
    """Let pip answer a dry run with these files."""
    answers = {True: rows[:1], False: rows}
    monkeypatch.setattr(
        installing, "_chosen_by_pip", lambda _folder, *words: answers["--no-deps" in words]
    )
    monkeypatch.setattr(installing, "_size", lambda address: int(address) * 10**6)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_uv_takes_the_build_for_this_machine(installing, uv, tmp_path, capsys):
    calls = uv(reaches=True)
    installing.install(tmp_path / "env", *WORDS)
    tried, done = calls.read_text().splitlines()
    assert "--torch-backend auto --dry-run torch==2.13.0" in tried
    assert done.endswith("--torch-backend auto " + " ".join(WORDS))
    assert installing.by_pip == []
    assert "uv takes torch 2.13.0+cpu, no NVIDIA driver is here." in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_where_uv_cannot_reach_them_pip_says_how_much_it_will_load(
    installing, uv, monkeypatch, tmp_path, capsys
):
    uv(reaches=False)
    answer_dry_run(installing, monkeypatch, [("2.13.0", "500"), ("13.1.1", "2200")])
    installing.install(tmp_path / "env", *WORDS)
    assert installing.by_pip == [WORDS]
    output = capsys.readouterr().out
    assert "uv cannot reach the builds of torch from here" in output
    assert "the CUDA build with its libraries of torch==2.13.0, 2.7 GB to load" in output
    assert "Without a card the CPU build (0.2 GB) is enough" in output


def test_pip_with_sources_of_its_own_is_asked_and_nothing_else(
    installing, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(installing, "_pip_has_sources", lambda: True)
    monkeypatch.setattr(installing, "_uv", lambda _folder: pytest.fail("uv reads none of them"))
    answer_dry_run(installing, monkeypatch, [("2.13.0+cpu", "190")])
    installing.install(tmp_path / "env", *WORDS)
    assert installing.by_pip == [WORDS]
    assert "the CPU build of torch==2.13.0, 0.2 GB to load" in capsys.readouterr().out


def test_a_pip_that_names_no_build_is_reported_as_such(installing, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(installing, "_pip_has_sources", lambda: True)
    monkeypatch.setattr(installing, "_chosen_by_pip", lambda _folder, *_words: [])
    installing.install(tmp_path / "env", *WORDS)
    assert "pip does not say which build of torch==2.13.0 it takes" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("pytest>=8.4",), ("torch===2.13.0",)], ids=str)
def test_no_build_is_chosen_where_none_is_asked_for(installing, words, monkeypatch, tmp_path):
    monkeypatch.setattr(installing, "_uv", lambda _folder: pytest.fail("not asked"))
    monkeypatch.setattr(installing, "_announce", lambda *_: pytest.fail("not announced"))
    installing.install(tmp_path / "env", *words)
    assert installing.by_pip == [words]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, False),
        ({"PIP_FIND_LINKS": "wheels"}, True),
        ({"PIP_EXTRA_INDEX_URL": "https://example.org/simple"}, True),
        ({"PIP_DEFAULT_TIMEOUT": "60"}, False),
    ],
)
def test_configured_sources_of_pip_are_recognized(monkeypatch, variables, told):
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "installing", raising=False)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert importlib.import_module("installing")._pip_has_sources() is told


def test_large_files_and_the_unpacking_are_told(installing, capsys):
    for line in (
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)\n",
        "  Downloading idna-3.20-py3-none-any.whl (71 kB)\n",
        "Installing collected packages: idna, torch\n",
    ):
        installing._print_size(line)
    assert capsys.readouterr().out == (
        "  downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl, 526.6 MB\n"
        "  unpacking 2 packages\n"
    )
