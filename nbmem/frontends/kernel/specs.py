"""Install, list and remove Jupyter kernels with a virtual card."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from nbmem.core.errors import NbmemError, NotWrittenError, UsageError
from nbmem.core.suggestions import suggest
from nbmem.engine import TORCH
from nbmem.virtual.card_names import find_cards

METADATA = "nbmem"
"""The key of a kernelspec's metadata that says that it is one of these."""
MODULE = "nbmem.frontends.kernel.launcher"


class VirtualKernel(NamedTuple):
    """An installed kernel with a virtual card.

    Attributes:
        name: Jupyter's name of it.
        title: What Jupyter shows.
        gpu: Its cards.
        engine: What makes their figures.
        folder: Where it is installed.
        python: Its Python.
    """

    name: str
    title: str
    gpu: str
    engine: str
    folder: str
    python: str


def short_name(gpu: str) -> str:
    """Return the short name of cards: `H100 80GB`, `2xT4`, `H100 80GB, 2xT4`.

    Raises:
        UsageError: There is no such card.
    """
    runs = [(key, len(list(run))) for key, run in groupby(card.key for card in find_cards(gpu))]
    return ", ".join(key if count == 1 else f"{count}x{key}" for key, count in runs)


def install(gpu: str, engine: str, *, in_prefix: bool = False) -> VirtualKernel:
    """Install a kernel of this Python; replace an equal one.

    Args:
        gpu: Its cards, as `nbmem run --gpu` takes them.
        engine: `rules` or `torch`.
        in_prefix: Install it into this Python's environment, where a Jupyter beside it finds it,
            instead of the user's folder, where every Jupyter does.

    Raises:
        NbmemError: There is no such card, ipykernel is missing, or nothing can be written.
    """
    cards = short_name(gpu)
    slug = re.sub(r"[^a-z0-9]+", "-", cards.lower())
    name = f"nbmem-{slug}" + ("-torch" if engine == TORCH else "")
    title = f"Python 3 (virtual {cards}{', engine torch' * (engine == TORCH)})"
    given = ["--gpu", cards, "--engine", engine]
    overrides = {
        "argv": [sys.executable, "-m", MODULE, *given, "-f", "{connection_file}"],
        "display_name": title,
        "metadata": {"debugger": True, METADATA: {"gpu": cards, "engine": engine}},
    }
    manager = _manager()
    try:
        from ipykernel.kernelspec import write_kernel_spec
    except ImportError as err:
        raise _not_installed("ipykernel") from err
    with tempfile.TemporaryDirectory() as work:
        source = write_kernel_spec(str(Path(work, name)), overrides=overrides)
        try:
            prefix = sys.prefix if in_prefix else None
            folder = manager.install_kernel_spec(source, name, user=not in_prefix, prefix=prefix)
        except OSError as err:
            raise NotWrittenError(
                f"Cannot install the kernel {name} ({err}). Try it with"
                f"{'out' if in_prefix else ''} --sys-prefix."
            ) from err
    return VirtualKernel(name, title, cards, engine, str(folder), sys.executable)


def installed() -> list[VirtualKernel]:
    """List the kernels with a virtual card that Jupyter finds from here.

    Raises:
        NbmemError: jupyter_client is missing.
    """
    found = []
    for name, folder in sorted(_manager().find_kernel_specs().items()):
        try:
            spec = json.loads(Path(folder, "kernel.json").read_text("utf-8"))
            own = spec["metadata"][METADATA]
            gpu, engine = str(own["gpu"]), str(own["engine"])
            title, python = str(spec["display_name"]), str(spec["argv"][0])
        except (OSError, ValueError, KeyError, TypeError, IndexError):  # another program's
            continue
        found.append(VirtualKernel(name, title, gpu, engine, folder, python))
    return found


def remove(name: str) -> VirtualKernel:
    """Remove a kernel that `install` has made.

    Raises:
        NbmemError: There is no such kernel among these, or it cannot be removed.
    """
    kernels = {kernel.name: kernel for kernel in installed()}
    if name not in kernels:
        listed = ", ".join(kernels) or "none"
        meant = suggest(name, list(kernels))
        raise UsageError(f"No kernel of nbmem's is called {name!r}. {meant}There are: {listed}.")
    try:
        _manager().remove_kernel_spec(name)
    except OSError as err:
        raise NotWrittenError(f"Cannot remove the kernel {name} ({err}).") from err
    return kernels[name]


def _manager() -> Any:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as err:
        raise _not_installed("jupyter_client") from err
    return KernelSpecManager()


def _not_installed(package: str) -> NbmemError:
    return UsageError(
        f"Cannot handle kernels: {package} is not installed. Run `{sys.executable} -m pip install "
        "ipykernel`."
    )
