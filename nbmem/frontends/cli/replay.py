"""`nbmem replay FILE`: compare a recording with a simulation.

The simulated allocator replays it event by event.

`--json` prints `events`, `exact`, `first_difference` (null, or which event differs and how),
`peak_allocated`, `peak_reserved`, `recorded_peak_allocated` and `recorded_peak_reserved`, all in
bytes. The form is stable: keys are added in later versions, never renamed or removed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nbmem.core.arguments import add_max_size
from nbmem.frontends.cli.subcommand import EXIT_FAILED, EXIT_OK, Subcommand, write_out

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a saved session or a torch snapshot")
    add_max_size(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Replay the file; return 1 if simulation and recording differ."""
    from nbmem.allocator.recordings.replay import replay
    from nbmem.core.files.size_limits import Limits

    result = replay(options.file, limits=Limits.of(options.max_size))
    write_out(json.dumps(result.to_json(), indent=2) if options.json else result.text())
    return EXIT_OK if result.exact else EXIT_FAILED


COMMAND = Subcommand("replay", "replay a recording with the simulated allocator", configure, run)
