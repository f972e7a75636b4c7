"""`nbmem explain [TIP]`: explain a tip; without a name, list all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand, write_out

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("tip", metavar="TIP", nargs="?", help="its name, as a report prints it")


def run(options: argparse.Namespace) -> int:
    """Print the page of a tip, or the list of all."""
    from nbmem.report.tips.engine import rule_named
    from nbmem.report.tips.mutes import muted
    from nbmem.report.tips.rules import RULES
    from nbmem.views.tip_catalogue import render_rule, render_rules

    silent = muted()
    if options.tip is None:
        write_out(render_rules(RULES, silent))
    else:
        rule = rule_named(options.tip)
        write_out(render_rule(rule, muted=rule.name in silent))
    return EXIT_OK


COMMAND = Subcommand("explain", "what a tip means; without a name, all of them", configure, run)
