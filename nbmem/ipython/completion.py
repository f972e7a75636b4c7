"""What Tab offers after `%nbmem` and `%%memtrace`: subcommands, options, cards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nbmem.ipython.commands import COMMANDS
from nbmem.ipython.guest import shell_entry
from nbmem.ipython.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOOK = "complete_command"
_LINES = ("%nbmem", "%%nbmem", "%memtrace", "%%memtrace")
_AFTER_GPU = re.compile(r"(--gpu|nbmem\s+gpu)[ =]+\S*$")


class Completion:
    """Completes nbmem's lines in one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def install(self) -> None:
        """Offer completions from now on."""
        for line in _LINES:
            self._shell.set_hook(_HOOK, complete, str_key=line)

    def remove(self) -> None:
        """Offer none any more; IPython has no call for that."""
        offered = getattr(self._shell.strdispatchers.get(_HOOK), "strs", {})
        for line in _LINES:
            offered.pop(line, None)


@shell_entry("complete this line", otherwise=lambda *_: [])
def complete(_shell: Any, event: Any) -> list[str]:
    """What may stand where the cursor is, as IPython's hook for it wants."""
    before = event.text_until_cursor.rpartition("\n")[2]
    return [word for word in _words(before) if word.lower().startswith(event.symbol.lower())]


def _words(before: str) -> Iterable[str]:
    if _AFTER_GPU.search(before):
        from nbmem.virtual.cards import CARDS

        return [card.key.replace(" ", "-") for card in CARDS]  # a blank would end the word
    if "memtrace" in before:
        return [option.flag for option in OPTIONS]
    words = len(before.split()) - (not before.endswith(" "))
    if words == 2 and before.split()[1] == "export":
        from nbmem.views.exports import FORMATS

        return [known.name for known in FORMATS]
    return [command.name for command in COMMANDS] if words == 1 else []
