"""Shared output of `nbmem run` and `nbmem report`: one card's report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nbmem.core.arguments import add_device, add_private
from nbmem.core.errors import NbmemError, NotWrittenError
from nbmem.frontends.cli.subcommand import print_message, write_out

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from nbmem.api.tracing import Trace


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options for the card and the files of a report."""
    add_device(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON (a stable form)")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page of its own")
    add_private(parser)


def write_report(
    trace: Trace, files: dict[str, Path], *, device: int | None, quiet: bool, private: bool
) -> bool:
    """Print one card's report and write the requested files.

    False if one of the files is missing afterwards.
    """
    from nbmem.views.oom import without_commands

    try:
        trace = trace.private() if private else trace
        if "save" in files:
            trace.save(files["save"])
        report = without_commands(trace.report(device))
        if "json" in files:
            from nbmem.views.exports import report as figures

            figures.write(report, files["json"])
        if "html" in files:
            from nbmem.views.exports import page

            page.write(report, files["html"])
        if not quiet:
            from nbmem.views.text import render_text

            write_out(render_text(report))
    except BrokenPipeError:  # `nbmem run x.py | head`: the reader has closed the pipe
        sys.stdout = None
    except NotWrittenError as err:
        print_message(str(err))
        return False
    except NbmemError as err:
        print_message(str(err))
        return not files
    except Exception as err:  # noqa: BLE001 - a fault of nbmem must not change how the script ended
        print_message(
            f"the report could not be made ({type(err).__name__}: {err}). It is a fault of "
            "nbmem's: please report it with this line and what --save writes."
        )
        return False
    return True
