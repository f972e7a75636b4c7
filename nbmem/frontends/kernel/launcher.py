"""Start a Jupyter kernel with a virtual card.

A kernelspec of `nbmem kernel install` runs it as a module, with `--gpu NAME --engine NAME -f FILE`.
What it does not know is passed on to ipykernel. A card that cannot be had does not keep the kernel from
starting: its first cell says why.
"""

from __future__ import annotations

import argparse
import sys

from nbmem.core.errors import NbmemError
from nbmem.engine import RULES, TORCH, process
from nbmem.frontends.kernel import first_cell


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
    first_cell.prepare(app.shell, options.gpu, problem)
    app.start()


if __name__ == "__main__":
    main()
