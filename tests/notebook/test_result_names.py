"""Names for the results of cells and traced statements."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="there is nothing to name without torch")

from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category

LARGE, SMALL = 1 << 20, 1 << 10
"""Floats; the heap is looked at for a MiB only."""


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    with virtual.activated("H100 80GB"):
        nbmem.load_ipython_extension(shell)
        shell.run_cell("import torch")
        yield shell
        shell.reset(new_session=False)
        nbmem.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()


@pytest.fixture
def traced(shell, tmp_path):
    def traced(code):
        shell.run_cell(code, store_history=True)
        shell.run_cell(f"%nbmem save {tmp_path / 'cell.nbmem'}")
        return holdings_by_name(nbmem.open(tmp_path / "cell.nbmem").report())

    return traced


def holdings_by_name(report):
    return {held.name: (held.category, held.requested) for held in report.holdings}, report


@pytest.mark.parametrize("count", [LARGE, SMALL])
def test_a_statements_value_is_named(traced, count):
    made = f"torch.ones({count}, device='cuda')"
    name = f"the statement's value ({count},) float32"
    found, report = traced(f"%memtrace {made}")
    assert found == {name: (Category.USER_TENSORS, 4 * count)}
    assert report.ledger_at_end[Category.UNKNOWN] == 0
    found, _ = traced(f"x = %memtrace {{'a': [{made}]}}")
    assert found[f"the statement's value['a'][0] ({count},) float32"][1] == 4 * count
    assert f"Out[1] ({count},) float32" in found, "as one types it, not _oh[1]"


def test_a_cells_last_value_is_its_out(traced):
    found, _ = traced(f"%%memtrace\ntorch.ones({SMALL}, device='cuda')")
    found.pop(None, None)  # what printing it takes where values are computed
    assert found == {f"Out[1] ({SMALL},) float32": (Category.USER_TENSORS, 4 * SMALL)}


def test_a_result_is_named_as_one_types_it_whatever_shell_keeps_it(shell, traced):
    kind = type("Shell", (type(shell),), {"__module__": "google.colab._shell"})
    shell.__class__ = kind  # Colab has a class of its own
    shell.run_cell(f"torch.ones({SMALL}, device='cuda')", store_history=True)
    found, _ = traced(f"%%memtrace\nmore = torch.ones({SMALL}, device='cuda')")
    assert set(found) == {f"Out[1] ({SMALL},) float32", f"more ({SMALL},) float32"}


def test_an_unassigned_value_is_released_once_the_report_exists(shell):
    gc.disable()
    try:
        shell.user_ns["seen"] = seen = []
        shell.user_ns["keep"] = lambda t: seen.append(weakref.ref(t)) or t
        shell.run_cell("%memtrace keep(torch.ones(9, device='cuda'))\n2", store_history=True)
        assert seen[0]() is None
    finally:
        gc.enable()
