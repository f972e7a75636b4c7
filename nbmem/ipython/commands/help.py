"""`%nbmem help`: every subcommand in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.ipython.commands.base import Command, text_bundle
from nbmem.ipython.options import OPTIONS
from nbmem.ipython.showing import show_bundle

if TYPE_CHECKING:
    from nbmem.ipython.commands.base import Notebook


def help_text() -> str:
    """What can be typed, and what it does."""
    from nbmem.ipython.commands import COMMANDS

    commands = [(f"%nbmem {c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS]
    options = [(f"  {o.flag} {o.value or ''}".rstrip(), o.help) for o in OPTIONS]
    rows = [
        *commands,
        ("", ""),
        ("%%memtrace [NAME] [options]", "trace the cell below and show its report"),
        ("%memtrace [options] STATEMENT", "the same for one statement"),
        *options,
    ]
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:<{width}}  {right}".rstrip() for left, right in rows)


def _run(_notebook: Notebook, _argument: str) -> None:
    show_bundle(text_bundle(help_text()))


COMMAND = Command("help", "", "this table", _run)
