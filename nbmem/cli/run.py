"""`nbmem run SCRIPT`: a script from start to end, and where its memory went."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from nbmem.cli.base import EXIT_FAILED, EXIT_OK, Subcommand, say, targets, write_out
from nbmem.cli.ranks import RankRun
from nbmem.cli.script import Script, conclude
from nbmem.cli.virtual_ranks import add_ranks, run_ranks
from nbmem.core.arguments import add_device
from nbmem.core.errors import NbmemError, NotWrittenError, UsageError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nbmem.api import Trace
    from nbmem.report import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = (
        "nbmem run SCRIPT [--gpu NAME] [--ranks N] [--json FILE] [--html FILE] [--save FILE] "
        "[--stacks] [--quiet] [-- ARGUMENTS OF THE SCRIPT]"
    )
    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run")
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        default="auto",
        help="run on this virtual card (`nbmem gpus` lists them; 2xT4 is two); the default is a "
        "real card, or where there is none a virtual H100 80GB",
    )
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


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Which card's report, and the forms in which it can be written to a file."""
    add_device(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON (a stable form)")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page of its own")


def run(options: argparse.Namespace) -> int:
    """Run the script and write its report."""
    script = Script(options.script, options.script_arguments)
    if options.ranks is not None:
        return run_ranks(options)
    for name in ("nodes", "rank"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is about a world of virtual cards: give --ranks N, too.")
    return trace_script(script, options)


def trace_script(script: Script, options: argparse.Namespace) -> int:
    """Run a script that was read already; the options are those of `nbmem run`."""
    files = targets(options)
    rank = RankRun(options, files)
    traced = _use_card(options.gpu, quiet=rank.silent)
    script.prepare()
    trace = _begin(script, stacks=options.stacks) if traced else None
    if trace is not None:
        rank.begin(trace)
    process = os.getpid()
    error = script.run()
    if os.getpid() != process:  # a child that the script forked and let fall through to its end
        return conclude(error)
    if trace is not None:
        trace.stop(error)
    code = conclude(error)
    del error
    if trace is None:
        return code
    written = rank.end(trace)
    if not rank.silent:
        device = getattr(options, "device", None)
        written &= write_report(trace, files, device=device, quiet=options.quiet)
    return code if code != EXIT_OK or written else EXIT_FAILED


def write_report(trace: Trace, files: dict[str, Path], *, device: int | None, quiet: bool) -> bool:
    """Print one card's report and write the files asked for; False if one is missing then."""
    try:
        if "save" in files:
            trace.save(files["save"])
        report = _without_commands(trace.report(device))
        if "json" in files:
            from nbmem.views.exports import report as figures

            figures.write(report, files["json"])
        if "html" in files:
            from nbmem.views.exports import page

            page.write(report, files["html"])
        if not quiet:
            from nbmem.views.text import render_text

            write_out(render_text(report))
    except NotWrittenError as err:
        say(str(err))
        return False
    except NbmemError as err:
        say(str(err))
        return not files
    except Exception as err:  # noqa: BLE001 - a fault of ours must not change how the script ended
        say(
            f"the report could not be made ({type(err).__name__}: {err}). It is a fault of "
            "nbmem's: please report it with this line and what --save writes."
        )
        return False
    return True


def _without_commands(report: Report) -> Report:
    """The process that failed is gone, or not a notebook: there is nothing left to free in it."""
    return replace(report, ooms=tuple(replace(oom, command=None) for oom in report.ooms))


def _use_card(name: str, *, quiet: bool) -> bool:
    """Choose the card and say which; False where the script can only run untraced."""
    from nbmem import devices
    from nbmem.probes.cuda import import_torch

    if import_torch() is None:
        say(f"{devices.NO_TORCH} The script runs untraced.")
        return False
    choice = devices.use(name, defer=True)
    if name == devices.AUTO and choice.virtual and not quiet:
        say(choice.sentence)
    return True


def _begin(script: Script, *, stacks: bool) -> Trace:
    from nbmem import api

    return api.trace(script.name, stacks=stacks, namespace=script.namespace).start()


COMMAND = Subcommand("run", "run a script and report where its GPU memory went", configure, run)
