"""`%nbmem mute NAME` and `%nbmem unmute NAME`: tips that you do not want to hear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.errors import UsageError
from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand, text_bundle
from nbmem.ipython.options import CommandOption
from nbmem.ipython.showing import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook

_SESSION = "--session"


def _mute(_notebook: Notebook, argument: str) -> None:
    from nbmem.core import mutes
    from nbmem.tips import rule_named

    words = argument.split()
    names = [word for word in words if word != _SESSION]
    if len(names) != 1:
        raise UsageError("%nbmem mute needs one tip: `%nbmem mute card_empty`.")
    mutes.mute(rule_named(names[0]).name, for_good=_SESSION not in words)
    until = "until the kernel ends" if _SESSION in words else f"for you ({mutes.path()})"
    show_bundle(
        text_bundle(f"{names[0]} is muted {until}. `%nbmem unmute {names[0]}` brings it back.")
    )


def _unmute(_notebook: Notebook, argument: str) -> None:
    from nbmem.core import mutes
    from nbmem.tips import rule_named

    if not argument:
        raise UsageError("%nbmem unmute needs one tip: `%nbmem unmute card_empty`.")
    mutes.unmute(rule_named(argument).name)
    show_bundle(text_bundle(f"{argument} is told again, from the next report on."))


MUTE = MagicCommand(
    "mute",
    "NAME [--session]",
    "never show a tip again (or not in this session)",
    _mute,
    options=lambda: (CommandOption(_SESSION, None, "only until the kernel ends"),),
    offers=lambda asked: candidates.rules(asked, muted=False),
)
UNMUTE = MagicCommand(
    "unmute",
    "NAME",
    "show a tip again",
    _unmute,
    offers=lambda asked: candidates.rules(asked, muted=True),
)
