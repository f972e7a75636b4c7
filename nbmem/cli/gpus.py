"""`nbmem gpus`: the cards of this machine and the virtual ones that can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.cli.base import EXIT_OK, Subcommand, write_out

if TYPE_CHECKING:
    import argparse


def configure(_parser: argparse.ArgumentParser) -> None:
    """There are no arguments."""


def run(_options: argparse.Namespace) -> int:
    """Print the table."""
    from nbmem import devices

    write_out(devices.table())
    return EXIT_OK


COMMAND = Subcommand("gpus", "list the cards, real and virtual", configure, run)
