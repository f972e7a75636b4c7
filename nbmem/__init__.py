"""nbmem names every byte that nvidia-smi shows for a PyTorch notebook.

In a notebook: `%load_ext nbmem`, then `%%memtrace` above a cell.
From Python: `with nbmem.trace():`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nbmem.core.version import __version__ as __version__

if TYPE_CHECKING:
    from nbmem import virtual
    from nbmem.api.freeing import free
    from nbmem.api.live_tensors import top
    from nbmem.api.rank_folders import open  # noqa: A004 - nbmem.open() reads well
    from nbmem.api.rank_recording import recorded
    from nbmem.api.testing import assert_peak, diff
    from nbmem.api.tracing import phase, trace
    from nbmem.estimates.api import estimate, fit, layers, plan
    from nbmem.estimates.language_models.api import estimate_model, fit_context
    from nbmem.frontends.notebook.extension import load_ipython_extension, unload_ipython_extension


__all__ = [
    "assert_peak",
    "diff",
    "estimate",
    "estimate_model",
    "fit",
    "fit_context",
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
    "assert_peak": "nbmem.api.testing",
    "diff": "nbmem.api.testing",
    "estimate": "nbmem.estimates.api",
    "estimate_model": "nbmem.estimates.language_models.api",
    "fit": "nbmem.estimates.api",
    "fit_context": "nbmem.estimates.language_models.api",
    "free": "nbmem.api.freeing",
    "layers": "nbmem.estimates.api",
    "load_ipython_extension": "nbmem.frontends.notebook.extension",
    "open": "nbmem.api.rank_folders",
    "phase": "nbmem.api.tracing",
    "plan": "nbmem.estimates.api",
    "recorded": "nbmem.api.rank_recording",
    "top": "nbmem.api.live_tensors",
    "trace": "nbmem.api.tracing",
    "unload_ipython_extension": "nbmem.frontends.notebook.extension",
}
_MOVED = {
    "answers": "nbmem.report.estimate_results",
    "devices": "nbmem.api.device_selection",
    "freeing": "nbmem.api.freeing",
    "ledger": "nbmem.report.ledger",
    "living": "nbmem.api.live_tensors",
    "testing": "nbmem.api.testing",
    "world": "nbmem.api.rank_folders",
}
"""Modules by their former names, for code that imports types from them: `nbmem.answers.Fit`."""


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the paths of the compiled extension in a checkout.

    `jupyter labextension develop` calls this.
    """
    return [{"src": "labextension", "dest": "nbmem-labextension"}]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, to keep `import nbmem` light."""
    if name == "virtual":
        return import_module("nbmem.virtual")
    if name in _MOVED:
        return import_module(_MOVED[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nbmem' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted({*globals(), *__all__})
