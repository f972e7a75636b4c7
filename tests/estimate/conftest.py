"""Fixtures that run estimates in this process, which saves seconds."""

import gc
import importlib
import pickle
import sys

import pytest

from nbmem import virtual


@pytest.fixture(scope="module")
def here():
    """Run estimates in this process instead of a child."""
    apart = importlib.import_module("nbmem.estimates.runs.subprocess_client")
    estimates = importlib.import_module("nbmem.estimates")

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
