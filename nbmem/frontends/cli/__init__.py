"""The command line: `nbmem run`, `report`, `fit`, `plan` and others.

Exit codes: 0 success; 1 the script raised, a requested file could not be written, a replay is not
exact, or nbmem has a fault; 2 a wrong option, an unknown card, a missing or unreadable file; 130
interrupted. `nbmem run` passes on the code of a script that exits by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import nbmem
from nbmem.core.arguments import LineParser
from nbmem.core.errors import NbmemError, NotWrittenError, UsageError
from nbmem.frontends.cli import (
    demo,
    diff,
    estimate,
    explain,
    export,
    fit,
    gpus,
    kernel,
    layers,
    plan,
    replay,
    report,
    run,
    strip,
    viewer,
)
from nbmem.frontends.cli.subcommand import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, print_message

if TYPE_CHECKING:
    from nbmem.frontends.cli.subcommand import Subcommand

COMMANDS: tuple[Subcommand, ...] = (
    run.COMMAND,
    report.COMMAND,
    replay.COMMAND,
    diff.COMMAND,
    export.COMMAND,
    viewer.COMMAND,
    strip.COMMAND,
    explain.COMMAND,
    estimate.COMMAND,
    fit.COMMAND,
    plan.COMMAND,
    layers.COMMAND,
    gpus.COMMAND,
    kernel.COMMAND,
    demo.COMMAND,
)

_EPILOG = """\
exit codes: 0 all is well; 1 the script raised, a file could not be written, a replay is not
exact, or nbmem has a fault; 2 a wrong option, an unknown card, a missing or unreadable file; 130
interrupted; `run` passes on the code of a script that exits by itself."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    top = LineParser(
        "nbmem",
        description=nbmem.__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=LineParser)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        command.configure(sub)
        sub.set_defaults(run=command.run, parser=sub)
    return top


class _Version(argparse.Action):
    """Print nbmem's version, and which cuDNN a virtual card asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from nbmem.virtual.hardware.cudnn.installed import sentence

        sys.stdout.write(f"nbmem {nbmem.__version__}\n{sentence()}\n")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given, script_arguments = _split(sys.argv[1:] if argv is None else list(argv))
    try:
        options = _read(given)
        options.script_arguments = script_arguments
        options.command_line = _command_line(argv)
        code: int = options.run(options)
    except BrokenPipeError:  # `nbmem report x | head`: the reader has closed the pipe
        sys.stdout = None
        return 0
    except (Exception, KeyboardInterrupt) as err:  # noqa: BLE001 - report a sentence for any content of a file
        sentence, code = _error_outcome(err)
        print_message(sentence)
    return code


def _error_outcome(err: BaseException) -> tuple[str, int]:
    """Return the sentence and exit code for the error of a command."""
    if isinstance(err, KeyboardInterrupt):
        return "interrupted.", EXIT_INTERRUPTED
    if isinstance(err, NbmemError):
        return str(err), EXIT_FAILED if isinstance(err, NotWrittenError) else EXIT_USAGE
    return _fault(err), EXIT_FAILED


def _fault(err: BaseException) -> str:
    """Return the one sentence for an unexpected error."""
    what = f"{type(err).__name__}: {err}".splitlines()[0][:200]
    return (
        f"nbmem could not go on ({what}). It is a fault of nbmem's: please report it with this "
        "line, and with the file if you may hand it on."
    )


def _command_line(argv: Sequence[str] | None) -> list[str]:
    """Return Python's arguments that start this command again."""
    return sys.orig_argv[1:] if argv is None else ["-m", "nbmem", *argv]


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split nbmem's arguments from the script's, which follow `--`."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _read(arguments: list[str]) -> argparse.Namespace:
    """Parse nbmem's own arguments.

    Raises:
        UsageError: They cannot be read.
    """
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        prog, hint = options.parser.prog, ""
        if prog.endswith(" run"):
            line = f"{prog} SCRIPT -- {' '.join(unknown)}"
            hint = f"If that is for the script, put -- before it: `{line}`."
        raise UsageError(options.parser.unknown(unknown, hint))
    return options
