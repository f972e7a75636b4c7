"""Add an object's bytes on the card to what the inspector shows (Shift-Tab).

JupyterLab asks the kernel with an `inspect_request`, which ipykernel answers by the shell's
`object_inspect_mime`. That method of this one shell is replaced: IPython answers as before, and one
line is put in front of its text.
"""

from __future__ import annotations

import re
import sys
from html import escape
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.object_members import attributes_of, entries_of
from nbmem.frontends.notebook.error_boundary import shell_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

_CALL = "object_inspect_mime"
_PATH = re.compile(r"[^\W\d]\w*(\.\w+)*")
_LABEL = "GPU memory:"
_MEMBERS = ("_modules", "_parameters", "_buffers")
"""Dictionaries of a module in which its parts are."""


class Inspection:
    """The line about memory in one shell's inspections."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._theirs: Any = None

    def install(self) -> None:
        """Replace the shell's method with this object's."""
        self._theirs = getattr(self._shell, _CALL, None)
        if self._theirs is not None:
            setattr(self._shell, _CALL, self.object_inspect_mime)

    def remove(self) -> None:
        """Restore the shell's own method."""
        if vars(self._shell).get(_CALL) == self.object_inspect_mime:
            delattr(self._shell, _CALL)

    def object_inspect_mime(self, oname: str, *arguments: Any, **named: Any) -> Any:
        """Return IPython's answer with a line about memory.

        A KeyError for an unknown name is IPython's own.
        """
        return self._with_line(self._theirs(oname, *arguments, **named), oname)

    def _unchanged(self, bundle: Any, _name: str) -> Any:
        return bundle

    @shell_entry("say what this holds on the card", otherwise=_unchanged)
    def _with_line(self, bundle: Any, name: str) -> Any:
        told = self._bytes(name)
        if told is None or not isinstance(bundle, dict):
            return bundle
        changed = dict(bundle)
        if isinstance(text := bundle.get("text/plain"), str):
            changed["text/plain"] = f"{_LABEL:<13}{told}\n{text}"
        if html := bundle.get("text/html"):
            changed["text/html"] = f"<p>{_LABEL} {escape(told)}</p>{html}"
        return changed

    def _bytes(self, name: str) -> str | None:
        if "torch" not in sys.modules or not _PATH.fullmatch(name):
            return None
        found = _member(self._shell.user_ns, name)
        if found is None:
            return None
        from nbmem.api.object_bytes import bytes_on_cards

        return bytes_on_cards(found)


def _member(names: Mapping[str, Any], path: str) -> Any:
    """Return what a path leads to; None where that would run the user's code."""
    first, *rest = path.split(".")
    thing = names.get(first)
    for name in rest:
        own = attributes_of(thing) or {}
        inside = [own, *(own.get(part) for part in _MEMBERS)]
        found = [dict(entries_of(one)) for one in inside if issubclass(type(one), dict)]
        thing = next((one[name] for one in found if name in one), None)
    return thing
