"""`nbmem kernel`: kernels in which a virtual card is there from the first cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the card is torch's")
pytest.importorskip("ipykernel", reason="the kernels are Jupyter's")

from IPython.core.interactiveshell import InteractiveShell

from nbmem.core.errors import UsageError
from nbmem.frontends.cli import main
from nbmem.frontends.kernel import launcher, specs


@pytest.fixture(autouse=True)
def jupyter(tmp_path, monkeypatch):
    """The folder of a user's own kernels, with nothing in it."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "kernels"


def test_a_kernel_is_installed_listed_and_removed(jupyter, capsys):
    assert main(["kernel", "install", "--gpu", "2xt4", "--engine", "rules"]) == 0
    assert "Choose `Python 3 (virtual 2xT4)` in Jupyter" in capsys.readouterr().out
    spec = json.loads((jupyter / "nbmem-2xt4/kernel.json").read_text())
    assert spec["argv"] == [
        *(sys.executable, "-m", specs.MODULE, "--gpu", "2xT4", "--engine", "rules"),
        *("-f", "{connection_file}"),
    ]
    assert spec["display_name"] == "Python 3 (virtual 2xT4)"
    assert spec["metadata"]["nbmem"] == {"gpu": "2xT4", "engine": "rules"}
    assert main(["kernel", "list"]) == 0
    listed = capsys.readouterr().out
    assert listed == f"nbmem-2xt4  2xT4  engine rules  {jupyter / 'nbmem-2xt4'}\n"
    assert main(["kernel", "remove", "nbmem-2xt4"]) == 0
    assert not list(jupyter.iterdir())
    capsys.readouterr()
    main(["kernel", "list"])
    assert capsys.readouterr().out.startswith("No kernel with a virtual card is installed.")


def test_engines_of_one_card_are_two_kernels():
    torch = specs.install("H100", "torch")
    assert torch.title == "Python 3 (virtual H100 80GB, engine torch)"
    specs.install("H100", "rules")
    names = [(kernel.name, kernel.engine) for kernel in specs.installed()]
    assert names == [("nbmem-h100-80gb", "rules"), ("nbmem-h100-80gb-torch", "torch")]


def test_only_its_own_kernels_are_removed(jupyter):
    other = jupyter / "julia"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text('{"argv": ["julia"], "display_name": "Julia"}')
    specs.install("T4", "rules")
    with pytest.raises(UsageError, match=r"called 'julia'\. There are: nbmem-t4\."):
        specs.remove("julia")
    with pytest.raises(UsageError, match="Did you mean nbmem-t4"):
        specs.remove("nbmem-t5")
    assert (other / "kernel.json").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("install --gpu T40", "No card is called 'T40'."),
        ("install T4", "Write nbmem kernel install, with --gpu T4 for a card."),
        ("remove", "Write nbmem kernel remove NAME"),
        ("list --gpu T4", "--gpu and --sys-prefix are for `nbmem kernel install`."),
        ("add", "nbmem kernel has no command 'add'. There are: install, list, remove."),
    ],
)
def test_a_wrong_line_is_a_sentence(line, sentence, capsys):
    assert main(["kernel", *line.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_a_kernel_without_its_card_says_so_once_in_the_first_cell(capsys):
    shell = InteractiveShell.instance()
    try:
        launcher.prepare(shell, "T4", problem="Cannot use the engine torch: it is gone.")
        capsys.readouterr()
        shell.run_cell("1")
        sentence = (
            "nbmem: Cannot use the engine torch: it is gone. This kernel has no virtual card.\n"
        )
        assert capsys.readouterr().err == sentence
        shell.run_cell("2")
        assert not capsys.readouterr().err
    finally:
        shell.extension_manager.unload_extension("nbmem")
        InteractiveShell.clear_instance()


def test_a_real_kernel_has_its_card_in_the_first_cell():
    from jupyter_client.manager import start_new_kernel

    kernel = specs.install("T4", "rules")
    manager, client = start_new_kernel(kernel_name=kernel.name, startup_timeout=120)
    shown: list[str] = []

    def hook(message):
        content = message["content"]
        shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

    try:
        code = "import torch; print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])"
        client.execute_interactive(code, output_hook=hook, timeout=60)
        assert "".join(shown) == f"Tesla T4 {15637413888}\n"
        shown.clear()
        cell = "%%memtrace\nkept = torch.zeros(1 << 18, device='cuda')"
        client.execute_interactive(cell, output_hook=hook, timeout=60)
        report = "".join(shown)
        assert "on Tesla T4 (virtual)" in report
        assert "user tensors             1.0 MiB" in report
        assert "on a virtual Tesla T4" in client.kernel_info(reply=True)["content"]["banner"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        Path(kernel.folder, "kernel.json").unlink()
