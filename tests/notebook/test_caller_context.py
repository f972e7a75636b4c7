"""IPython's functions by which nbmem detects a running cell."""

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")

from IPython.core.extensions import ExtensionManager
from IPython.core.interactiveshell import InteractiveShell

from nbmem.frontends.notebook import caller_context


@pytest.mark.parametrize(
    ("owner", "name"),
    [(InteractiveShell, caller_context.RUNS_A_CELL), (ExtensionManager, caller_context.RELOADS)],
)
def test_ipython_has_functions_of_these_names(owner, name):
    assert getattr(owner, name).__code__.co_name == name


def test_cells_that_enclose_the_caller_are_counted_at_any_depth(shell):
    shell.user_ns.update(count=caller_context.cell_depth, run=shell.run_cell)
    assert caller_context.cell_depth() == 0
    shell.run_cell("outer = count(); deeper = (lambda: (lambda: count())())()")
    shell.run_cell("run('inner = count()')")
    assert [shell.user_ns[name] for name in ("outer", "deeper", "inner")] == [1, 1, 2]


def test_a_reload_is_seen_at_any_depth():
    def reload_extension(depth):
        return caller_context.is_reloading() if not depth else reload_extension(depth - 1)

    assert not caller_context.is_reloading()
    assert reload_extension(0)
    assert reload_extension(5)
