"""`nbmem run SCRIPT`: run a script and report its memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbmem.core.arguments import refuse_private
from nbmem.core.errors import UsageError
from nbmem.core.files.untrusted_input import is_folder
from nbmem.engine import TORCH, process
from nbmem.engine.choice import NO_RANKS, add_engine, choose
from nbmem.frontends.cli.outputs import add_outputs, write_report
from nbmem.frontends.cli.rank_run import RankRun
from nbmem.frontends.cli.script import Script, conclude
from nbmem.frontends.cli.subcommand import EXIT_FAILED, EXIT_OK, Subcommand, print_message, targets
from nbmem.frontends.cli.virtual_ranks import add_ranks, run_ranks

if TYPE_CHECKING:
    import argparse

    from nbmem.api.tracing import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = (
        "nbmem run SCRIPT [--gpu NAME] [--engine NAME] [--ranks N] [--json FILE] [--html FILE] "
        "[--save FILE] [--private] [--stacks] [--quiet] [-- ARGUMENTS OF THE SCRIPT]"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run")
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        default="auto",
        help="run on this virtual card (`nbmem gpus` lists them; 2xT4 is two); the default is a "
        "real card, or where there is none a virtual H100 80GB",
    )
    add_engine(parser)
    add_ranks(parser)
    add_outputs(parser)
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="save the session for `nbmem report`; with a folder (runs/today/), each rank of a "
        "world its own",
    )
    parser.add_argument(
        "--stacks", action="store_true", help="record the Python line of every allocation"
    )
    parser.add_argument("--quiet", action="store_true", help="print no report")


def run(options: argparse.Namespace) -> int:
    """Run the script and write its report."""
    script = Script(options.script, options.script_arguments)
    _change_engine(options)
    if options.private and (options.ranks or is_folder(options.save or "")):
        raise refuse_private("what many ranks hold")
    if options.ranks is not None:
        return run_ranks(options)
    for name in ("nodes", "rank"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is about a world of virtual cards: give --ranks N, too.")
    return trace_script(script, options)


def _change_engine(options: argparse.Namespace) -> None:
    """Start again under the engine torch if that is the one to use.

    Raises:
        NbmemError: There is no such engine, or it cannot run here.
    """
    from nbmem.api import device_selection

    cannot = None if options.ranks is None else NO_RANKS
    if choose(options.engine, cannot) != TORCH or process.active():
        return
    from nbmem.engine import launch

    card = device_selection.DEFAULT if options.gpu == device_selection.AUTO else options.gpu
    launch.relaunch(card, options.command_line)


def trace_script(script: Script, options: argparse.Namespace) -> int:
    """Run a script that was read already, and write its report.

    The options are those of `nbmem run`.
    """
    files = targets(options)
    rank = RankRun(options, files)
    traced = _use_card(options.gpu, quiet=rank.silent)
    script.prepare()
    trace = _begin(script, stacks=options.stacks) if traced else None
    if trace is not None:
        rank.begin(trace)
    process = os.getpid()
    calls = None if trace is None else trace.follow_functions(script.namespace)
    error = script.run(calls)
    if os.getpid() != process:  # a child that the script forked, and that ran to the script's end
        return conclude(error)
    if trace is not None and calls is not None:
        calls.stop(error)
        with script.names_at_end(calls.failed_frames(error)):
            trace.stop(error)
    code = conclude(error)
    del error
    if trace is None:
        return code
    written = rank.end(trace)
    if not rank.silent:
        device = getattr(options, "device", None)
        private = getattr(options, "private", False)
        written &= write_report(trace, files, device=device, quiet=options.quiet, private=private)
    return code if code != EXIT_OK or written else EXIT_FAILED


def _use_card(name: str, *, quiet: bool) -> bool:
    """Choose the card and print which one.

    False if torch is missing, so that the script can only run untraced.
    """
    from nbmem.api import device_selection
    from nbmem.capture.torch_cuda import import_torch

    if import_torch() is None:
        print_message(f"{device_selection.NO_TORCH} The script runs untraced.")
        return False
    choice = device_selection.use(name, defer=True)
    if name == device_selection.AUTO and choice.virtual and not quiet:
        print_message(choice.sentence)
    return True


def _begin(script: Script, *, stacks: bool) -> Trace:
    from nbmem.api import tracing

    return tracing.trace(script.name, stacks=stacks, namespace=script.namespace).start()


COMMAND = Subcommand("run", "run a script and report where its GPU memory went", configure, run)
