"""`nbmem gpus`: the cards of this machine, who is on them, and the virtual ones."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from nbmem.cli.base import EXIT_FAILED, EXIT_OK, Subcommand, say, write_out
from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

LEAST_S = 0.5
"""Seconds between two pictures: a server is asked at each."""
_HOME = "\x1b[H\x1b[J"
"""Moves a terminal's cursor to its corner and clears what stands below."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        const=2.0,
        type=float,
        help="show who is on the real cards, again every so many seconds (2), until Ctrl-C",
    )
    parser.add_argument(
        "--shut-down",
        metavar="PID",
        type=int,
        help="ask the Jupyter server of a kernel of yours to shut it down, after a confirmation",
    )


def run(options: argparse.Namespace) -> int:
    """Print the table, or what was asked for."""
    from nbmem import devices
    from nbmem.living import in_use_now

    if options.shut_down is not None:
        return _shut_down(options.shut_down)
    if options.watch is None:
        write_out(f"{devices.table()}\n\nOn the real cards now\n{in_use_now()}")
        return EXIT_OK
    if not math.isfinite(options.watch) or options.watch < LEAST_S:
        raise UsageError(f"--watch takes seconds, {LEAST_S} at least.")
    while True:
        before = _HOME if sys.stdout.isatty() else ""
        write_out(f"{before}{time.strftime('%H:%M:%S')}\n{in_use_now()}")
        time.sleep(options.watch)


def _shut_down(pid: int) -> int:
    """Shut a kernel down through its own server: it is asked for, and nothing is killed."""
    from nbmem.probes import servers
    from nbmem.probes.neighbours import neighbour
    from nbmem.views.neighbours import what

    kernels = servers.kernels()
    found = neighbour(pid, None, kernels)
    kernel = kernels.get(found.kernel or "")
    if not found.own or kernel is None:
        raise UsageError(
            f"Process {pid} is no kernel of a running Jupyter server of yours, so nbmem does not "
            "end it."
        )
    say(f"{what(found)}: all that it holds is lost. Shut it down? [y/N] ")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        say("Nothing has changed.")
        return EXIT_OK
    if not servers.shut_down(kernel):
        say("its server refused, or did not answer; nothing has changed.")
        return EXIT_FAILED
    say("it is shut down.")
    return EXIT_OK


COMMAND = Subcommand("gpus", "list the cards, who is on them, and the virtual ones", configure, run)
