"""`%nbmem explain NAME`: what a tip sees, what it costs, what to do, when to ignore it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands import candidates
from nbmem.ipython.commands.base import MagicCommand
from nbmem.ipython.showing import show_bundle, text_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def _run(_notebook: Notebook, argument: str) -> None:
    from nbmem.tips.engine import rule_named
    from nbmem.tips.mutes import muted
    from nbmem.tips.rules import RULES
    from nbmem.views.catalogue import render_rule, render_rules

    silent = muted()
    if not argument:
        show_bundle(text_bundle(render_rules(RULES, silent)))
        return
    rule = rule_named(argument)
    show_bundle(text_bundle(render_rule(rule, muted=rule.name in silent)))


COMMAND = MagicCommand(
    "explain",
    "[NAME]",
    "what a tip means; without a name, all of them",
    _run,
    offers=candidates.rules,
)
