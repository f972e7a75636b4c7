"""Choice of a card on the command line, and the table of cards."""

import subprocess
import sys
import webbrowser

import pytest

from nbmem.frontends.cli import demo


def _python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_gpus_lists_real_and_virtual_cards(nbmem):
    done = nbmem("gpus")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "Real cards"
    for name in ("H100 80GB", "A100 40GB", "L4", "T4", "RTX 4090"):
        assert any(line.startswith(f"  {name} ") for line in lines)


def test_demo_shows_its_code_and_its_report(nbmem):
    pytest.importorskip("torch")
    done = nbmem("demo", "--gpu", "T4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('"""Train a small CNN for three steps."""\nimport torch\n')
    assert "demo.py on Tesla T4 (virtual)" in done.stdout


def test_demo_opens_its_page(nbmem, tmp_path):
    pytest.importorskip("torch")
    done = nbmem("demo", "--gpu", "T4", "--open", env={"BROWSER": "true"})
    assert done.returncode == 0, done.stderr
    assert "opened" in done.stderr
    assert "application/vnd.nbmem.report+json" in (tmp_path / "nbmem-demo.html").read_text()


def test_without_a_browser_the_page_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    demo.open_page(tmp_path / "page.html")
    assert f"open {tmp_path / 'page.html'} in one." in capsys.readouterr().err


def test_auto_keeps_the_virtual_card_that_is_in_use_already():
    pytest.importorskip("torch")
    code = (
        "from nbmem import devices; print(devices.use('l4')); print(devices.use('auto').sentence)"
    )
    _, again = _python(code)
    assert again.startswith("Running on a virtual NVIDIA L4: ")


def test_the_table_marks_the_card_in_use_and_hides_the_real_ones_behind_it():
    pytest.importorskip("torch")
    code = (
        "from nbmem import devices; devices.use('t4'); print(devices.table()); "
        "print(devices.stop_virtual()); print(devices.stop_virtual())"
    )
    lines = _python(code)
    assert lines[1] == "  not to be seen while a virtual card is in use"
    assert [line.split()[0] for line in lines if line.endswith("in use")][1:] == ["T4"]
    assert lines[-2:] == [
        "The virtual Tesla T4 is out; torch.cuda is as it was before.",
        "No virtual card is in use; nothing has changed.",
    ]
