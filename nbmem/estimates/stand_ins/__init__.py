"""Stand in for packages that are not installed, with their layers' memory.

An estimate imports these where peft or bitsandbytes is missing. The layers keep and make the same
tensors; tests/estimate/test_stand_ins.py compares them with the packages to the byte.
"""

from __future__ import annotations

import importlib.util

_IMPORTS = {
    "import bitsandbytes as bnb": f"from {__name__} import four_bit as bnb",
    "from peft import ": f"from {__name__}.adapters import ",
}
"""Imports of packages that may be missing, and what the estimate imports then."""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a half-installed package
        return False


def with_stand_ins(source: str) -> tuple[str, tuple[str, ...]]:
    """Return a source that runs here, and the packages that it would need."""
    missing = []
    for line, other in _IMPORTS.items():
        package = line.split()[1]
        if line in source and not is_installed(package):
            source = source.replace(line, other)
            missing.append(package)
    return source, tuple(missing)
