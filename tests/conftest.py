"""Shared test setup: skips, reruns of whole systems, heap isolation."""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # how long an example takes is the machine's affair

WHOLE_SYSTEMS = ("browser/", "sidebar/test_kernel.py", "notebook/test_kernel.py")
"""Kernels, servers and browsers as they are: on a busy machine one may miss its time. A test that
fails there is run twice more; a fault of ours fails each time, and the summary names all runs."""

TEST_MODULE = re.compile(r"tests\.(?:.+\.)?test_\w+")
CACHED = type(functools.cache(int))
IMPORTS = (ast.Import, ast.ImportFrom)
NO_TORCH = importlib.util.find_spec("torch") is None


@functools.cache
def why_no_card() -> str | None:
    """The reason why tests of a real card cannot run here; None if they can."""
    import pynvml

    try:
        pynvml.nvmlInit()
        cards = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as err:
        return f"no NVIDIA driver answers ({type(err).__name__})"
    if not cards:
        return "the NVIDIA driver sees no card"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} cannot use the card"


class SkippedModule(pytest.Module):
    """A file of tests that imports torch, where torch is not installed."""

    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip("needs torch, which is not installed")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> SkippedModule | None:
    if NO_TORCH and imports_torch(module_path.read_text("utf-8")):
        return SkippedModule.from_parent(parent, path=module_path)
    return None


def imports_torch(source: str) -> bool:
    """Return whether a file imports torch outside of functions and conditions."""
    imports = [node for node in ast.parse(source).body if isinstance(node, IMPORTS)]
    names = [getattr(node, "module", None) or node.names[0].name for node in imports]
    return any(name.partition(".")[0] == "torch" for name in names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    again = importlib.util.find_spec("pytest_rerunfailures") is not None
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        if again and place.startswith(WHOLE_SYSTEMS):
            item.add_marker(pytest.mark.flaky(reruns=2))
        if NO_TORCH and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="needs torch, which is not installed"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask for a card in the process that runs the test, and only there."""
    if item.get_closest_marker("gpu") and (reason := why_no_card()):
        pytest.skip(f"needs a real card: {reason}")


@pytest.fixture(autouse=True, scope="module")
def _heap_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Show collections and walks only what this file's tests made.

    Torch, and the sessions that other files' tests keep, are most of the heap and take most of the
    time. A frozen object is in no collection, and `gc.get_referrers` does not find it. A walk that
    begins at the modules still comes to it. So other files of tests are not in `sys.modules`
    meanwhile, and at the end the results are dropped that functions cache in this file of tests or
    in one that it takes such a function from.
    """
    gc.collect()
    gc.freeze()
    other_tests = {
        name: module
        for name, module in sys.modules.items()
        if TEST_MODULE.match(name) and module is not request.module
    }
    for name in other_tests:
        del sys.modules[name]
    yield
    sys.modules.update(other_tests)
    for name in {"", *map(_home_of_cache, vars(request.module).values())} - {""}:
        for function in vars(sys.modules[name]).values():
            if _home_of_cache(function):
                function.cache_clear()


def _home_of_cache(function: object) -> str:
    """Return the module of tests whose function caches its results; "" for anything else."""
    home = function.__module__ if type(function) is CACHED else ""
    return home if home.startswith("tests.") and home in sys.modules else ""


@pytest.fixture
def card() -> Iterator[VirtualGPU]:
    """Provide a virtual T4."""
    from nbmem import virtual

    with virtual.activated("T4") as gpu:
        yield gpu


@pytest.fixture(autouse=True)
def _collector_left_on() -> Iterator[None]:
    """Fail where a test, or nbmem in it, leaves Python's collector off: later ones need it."""
    yield
    on = gc.isenabled()
    gc.enable()
    assert on, "Python's garbage collector was left off"
