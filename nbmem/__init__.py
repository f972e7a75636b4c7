"""nbmem names every byte that nvidia-smi shows for a PyTorch notebook.

In a notebook: `%load_ext nbmem`, then `%%memtrace` above a cell.
From Python: `with nbmem.trace():`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem import virtual
    from nbmem.api import phase, trace
    from nbmem.estimates import estimate, fit, layers, plan
    from nbmem.freeing import free
    from nbmem.ipython.extension import load_ipython_extension, unload_ipython_extension
    from nbmem.living import top
    from nbmem.ranks import recorded
    from nbmem.testing import assert_peak, diff
    from nbmem.world import open  # noqa: A004 - nbmem.open() reads well

__version__ = "0.1.0"

__all__ = [
    "assert_peak",
    "diff",
    "estimate",
    "fit",
    "free",
    "layers",
    "load_ipython_extension",
    "open",
    "phase",
    "plan",
    "recorded",
    "top",
    "trace",
    "unload_ipython_extension",
    "virtual",
]

_HOMES = {
    "assert_peak": "nbmem.testing",
    "diff": "nbmem.testing",
    "estimate": "nbmem.estimates",
    "fit": "nbmem.estimates",
    "free": "nbmem.freeing",
    "layers": "nbmem.estimates",
    "load_ipython_extension": "nbmem.ipython.extension",
    "open": "nbmem.world",
    "phase": "nbmem.api",
    "plan": "nbmem.estimates",
    "recorded": "nbmem.ranks",
    "top": "nbmem.living",
    "trace": "nbmem.api",
    "unload_ipython_extension": "nbmem.ipython.extension",
}


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where `jupyter labextension develop` finds the compiled extension of a checkout."""
    return [{"src": "labextension", "dest": "nbmem-labextension"}]


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for: `import nbmem` itself stays light."""
    if name == "virtual":
        return import_module("nbmem.virtual")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nbmem' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})
