"""`%nbmem mute NAME` and `%nbmem unmute NAME`: hide or show a tip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.arguments import parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.commands import completions
from nbmem.frontends.notebook.commands.base import MagicCommand, Notebook
from nbmem.frontends.notebook.display import show_bundle, text_bundle

if TYPE_CHECKING:
    import argparse


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*")
    parser.add_argument("--session", action="store_true", help="only until the kernel ends")


_PARSER = parser_of("%nbmem mute", _add)


def mute(name: str, *, for_good: bool = True) -> str:
    """Mute a tip, for good or until the kernel ends; return the message.

    Raises:
        UsageError: There is no such tip, or the user's file cannot be written.
    """
    from nbmem.report.tips import mutes
    from nbmem.report.tips.engine import rule_named

    mutes.mute(rule_named(name).name, for_good=for_good)
    until = f"for you ({mutes.path()})" if for_good else "until the kernel ends"
    return f"{name} is muted {until}. `%nbmem unmute {name}` brings it back."


def unmute(name: str) -> str:
    """Unmute a tip; return the message.

    Raises:
        UsageError: There is no such tip, or the user's file cannot be written.
    """
    from nbmem.report.tips import mutes
    from nbmem.report.tips.engine import rule_named

    mutes.unmute(rule_named(name).name)
    return f"{name} is shown again, from the next report on."


def _mute(_notebook: Notebook, argument: str) -> None:
    options = _PARSER.read(argument)
    if len(options.names) != 1:
        raise UsageError("%nbmem mute needs one tip: `%nbmem mute card_empty`.")
    show_bundle(text_bundle(mute(options.names[0], for_good=not options.session)))


def _unmute(_notebook: Notebook, argument: str) -> None:
    if not argument:
        raise UsageError("%nbmem unmute needs one tip: `%nbmem unmute card_empty`.")
    show_bundle(text_bundle(unmute(argument)))


MUTE = MagicCommand(
    "mute",
    "NAME [--session]",
    "never show a tip again (or not in this session)",
    _mute,
    options=_PARSER.options,
    offers=lambda asked: completions.rules(asked, muted=False),
)
UNMUTE = MagicCommand(
    "unmute",
    "NAME",
    "show a tip again",
    _unmute,
    offers=lambda asked: completions.rules(asked, muted=True),
)
