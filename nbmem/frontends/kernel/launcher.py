"""Start a Jupyter kernel with a virtual card.

A kernelspec of `nbmem kernel install` runs it as a module, with `--gpu NAME --engine NAME -f FILE`.
What it does not know is passed on to ipykernel. A card that cannot be had does not keep the kernel
from starting: its first cell says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from nbmem.core.errors import NbmemError
from nbmem.core.runtime.fault_isolation import error_of
from nbmem.core.runtime.warning_filter import suppress_warnings
from nbmem.engine import RULES, TORCH, process
from nbmem.frontends.notebook.error_boundary import notify


def main(arguments: list[str] | None = None) -> None:
    """Start the kernel, and serve it until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--engine", choices=(RULES, TORCH), default=RULES)
    options, rest = parser.parse_known_args(arguments)
    problem = None
    if options.engine == TORCH and not process.active():
        from nbmem.engine import launch

        try:
            launch.relaunch(options.gpu, sys.orig_argv[1:])
        except NbmemError as err:
            problem = str(err)
    if sys.path[:1] == [""]:  # as ipykernel's launcher does: the kernel adds it again
        del sys.path[0]
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance()
    app.initialize(rest)
    prepare(app.shell, options.gpu, problem)
    app.start()


def prepare(shell: Any, gpu: str, problem: str | None = None) -> None:
    """Load the extension into a shell and put a virtual card in.

    Nothing is raised: what fails is told above the output of the first cell, as nobody reads what
    is printed before.

    Args:
        shell: IPython's.
        gpu: The cards by name.
        problem: Why there is no card, if that is known; nothing is activated then.
    """
    try:
        shell.extension_manager.load_extension("nbmem")
        if problem is None:
            with suppress_warnings():
                shell.banner2 = _use(shell, gpu)
    except NbmemError as err:
        problem = str(err)
    except Exception as err:  # noqa: BLE001 - a kernel without a card is better than none
        problem = f"could not activate the virtual {gpu} ({error_of(err)})"
    if problem is not None:
        _notify_at_first_cell(shell, f"{problem.rstrip('.')}. This kernel has no virtual card.")


def _use(shell: Any, gpu: str) -> str:
    """Put the card in by the extension, which can take it out again."""
    from nbmem.frontends.notebook.extension import loaded_tracer

    tracer = loaded_tracer(shell)
    if tracer is not None:
        return tracer.use_card(gpu)
    from nbmem.api import device_selection

    return device_selection.use(gpu).sentence


def _notify_at_first_cell(shell: Any, sentence: str) -> None:
    """Tell a sentence once, when the first cell begins."""

    def print_once(*_: Any) -> None:
        shell.events.unregister("pre_run_cell", print_once)
        notify(sentence)

    callback: Callable[..., None] = print_once
    shell.events.register("pre_run_cell", callback)


if __name__ == "__main__":
    main()
