"""Fixtures that run estimates in this process, which saves seconds."""

import gc
import importlib
import pickle
import sys

import pytest

import nbmem
from nbmem import virtual


@pytest.fixture(scope="module")
def here():
    """Run estimates in this process instead of a child."""
    apart = importlib.import_module("nbmem.estimates.runs.subprocess_client")
    estimates = importlib.import_module("nbmem.estimates.api")

    class Here(apart.EstimateProcess):
        def __enter__(self):
            self._main = sys.modules["__main__"]
            return self

        def __exit__(self, *_exc):
            sys.modules["__main__"] = self._main

        def call(self, question, *arguments):
            program = pickle.loads(pickle.dumps(self._program))
            return question(program, *arguments)

    gc.freeze()  # as the process does: each run collects what the one before it left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "EstimateProcess", Here)
        yield estimates
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_card_left_behind():
    yield
    virtual.deactivate()


@pytest.fixture
def run(here, capsys):
    """Run a cell with the extension loaded; return stdout and stderr."""
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    nbmem.load_ipython_extension(shell)

    def run_cell(code):
        capsys.readouterr()
        shell.run_cell(code, store_history=True)
        return capsys.readouterr()

    run_cell.names = shell.user_ns
    yield run_cell
    nbmem.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main
