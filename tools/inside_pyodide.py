"""Check nbmem on this Python, without torch and numpy.

There are no threads and processes, either. What needs no further package is imported, the rest is
compiled, and every warning is an error. Then the tests run that need nothing else.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = (
    "tests/core/test_arguments.py",
    "tests/core/test_bytecode.py",
    "tests/core/test_garbage_collector.py",
    "tests/core/test_exceptions.py",
    "tests/core/test_source_files.py",
    "tests/core/test_units.py",
    "tests/estimate/test_variable_binding.py",
    "tests/estimate/test_value_search.py",
    "tests/files/test_atomic_write.py",
    "tests/host_safety/test_method_patches.py",
    "tests/sidebar/test_messages.py",
    "tests/views/test_history.py",
    "tests/views/test_markup.py",
)
"""What can be imported without numpy and starts no thread."""
NOT_IN_THIS_BUILD = {"_multiprocessing", "resource"}
NO_PROCESSES = "emscripten does not support processes"


class WithoutProcesses:
    """Skip what a test cannot do here, when it says so."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Turn the operating system's refusal into a skip."""
        try:
            yield
        except OSError as err:
            if NO_PROCESSES in str(err):
                pytest.skip(NO_PROCESSES)
            raise


def main() -> int:
    """Run the checks; return 0 if all is well."""
    warnings.simplefilter("error")
    paths = sorted(Path("nbmem").rglob("*.py"))
    imported = [path for path in paths if _is_imported(path)]
    for path in {*paths} - {*imported}:
        compile(path.read_bytes(), str(path), "exec")
    warnings.resetwarnings()
    print(f"Python {sys.version.split()[0]}: {len(imported)} of {len(paths)} modules imported")
    options = ("-q", "-p", "no:cacheprovider", "-W", "error::DeprecationWarning")
    return int(pytest.main([*options, *TESTS], plugins=[WithoutProcesses()]))


def _is_imported(path: Path) -> bool:
    """Import a module of nbmem; return whether that was possible.

    It is not if a package is missing. `__main__` is not imported.
    """
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        return False
    try:
        importlib.import_module(name)
    except ImportError as err:
        missing = (err.name or "").partition(".")[0]
        if missing in {"nbmem", *sys.stdlib_module_names} - NOT_IN_THIS_BUILD:
            raise
        return False
    return True
