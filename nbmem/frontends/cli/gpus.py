"""`nbmem gpus`: list the cards, their processes and virtual cards."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.frontends.cli.subcommand import (
    EXIT_FAILED,
    EXIT_OK,
    Subcommand,
    print_message,
    write_out,
)

if TYPE_CHECKING:
    import argparse

    from nbmem.capture.processes.jupyter_servers import Kernel
    from nbmem.core.gpu_processes import GpuProcess

MIN_S = 0.5
"""Fewest seconds between two updates: each queries the servers."""
_HOME = "\x1b[H\x1b[J"
"""Moves a terminal's cursor to its corner and clears the lines below."""


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
    parser.add_argument(
        "--free",
        metavar="PID",
        type=int,
        help="ask nbmem in a kernel of yours to give its cached memory back, after a confirmation",
    )


def run(options: argparse.Namespace) -> int:
    """Print the table, or run the action of an option."""
    from nbmem.api import device_selection
    from nbmem.api.live_tensors import in_use_now

    if options.shut_down is not None:
        return _shut_down(options.shut_down)
    if options.free is not None:
        return _free(options.free)
    if options.watch is None:
        write_out(f"{device_selection.table()}\n\nOn the real cards now\n{in_use_now()}")
        return EXIT_OK
    if not math.isfinite(options.watch) or options.watch < MIN_S:
        raise UsageError(f"--watch takes seconds, {MIN_S} at least.")
    while True:
        before = _HOME if sys.stdout.isatty() else ""
        write_out(f"{before}{time.strftime('%H:%M:%S')}\n{in_use_now()}")
        time.sleep(options.watch)


def _shut_down(pid: int) -> int:
    """Shut a kernel down through its own Jupyter server.

    A request to the server stops the kernel; no process is killed.
    """
    from nbmem.capture.processes import jupyter_servers
    from nbmem.views.gpu_processes import describe_process

    found, kernel = _own_kernel(pid, "end it")
    if not _agreed(f"{describe_process(found)}: all that it holds is lost. Shut it down? [y/N] "):
        return EXIT_OK
    if not jupyter_servers.shut_down(kernel):
        print_message(
            "its server refused, or did not answer in time: `nbmem gpus` says whether it is gone."
        )
        return EXIT_FAILED
    print_message("it is shut down.")
    return EXIT_OK


def _free(pid: int) -> int:
    """Make a kernel's allocator release its cache, not its tensors."""
    from nbmem.capture.processes.jupyter_kernels import free_cache
    from nbmem.views.gpu_processes import describe_process

    found, kernel = _own_kernel(pid, "ask it")
    if found.status is None or kernel.busy:
        why = (
            "runs a cell just now" if kernel.busy else "has no nbmem in it that says what it holds"
        )
        print_message(f"{describe_process(found)}: it {why}, so it is not asked.")
        return EXIT_FAILED
    if not _agreed(
        f"{describe_process(found)}: give back what it has cached and does not use? [y/N] "
    ):
        return EXIT_OK
    answer = free_cache(pid)
    if answer is None:
        print_message("it did not answer; whether anything has changed is not known.")
        return EXIT_FAILED
    write_out(answer)
    return EXIT_OK


def _own_kernel(pid: int, do: str) -> tuple[GpuProcess, Kernel]:
    """Return a kernel of one of this user's Jupyter servers.

    Raises:
        UsageError: There is no such kernel.
    """
    from nbmem.capture.processes import jupyter_servers
    from nbmem.capture.processes.gpu_processes import describe_process

    kernels = jupyter_servers.kernels()
    found = describe_process(pid, None, kernels)
    kernel = kernels.get(found.kernel or "")
    if not found.own or kernel is None:
        raise UsageError(
            f"Process {pid} is no kernel of a running Jupyter server of yours, so nbmem does not "
            f"{do}."
        )
    return found, kernel


def _agreed(question: str) -> bool:
    """Return whether the user confirms a question."""
    print_message(question)
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return True
    print_message("Nothing has changed.")
    return False


COMMAND = Subcommand("gpus", "list the cards, who is on them, and the virtual ones", configure, run)
