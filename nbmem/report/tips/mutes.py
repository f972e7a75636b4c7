"""Mute tips for one session, or for good in a small file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nbmem.core.errors import NotWrittenError, UsageError
from nbmem.core.files.atomic_write import write_text

_session: set[str] = set()
"""Muted until the process ends."""


def muted() -> frozenset[str]:
    """Return the names of the muted rules; an unreadable file mutes none."""
    return frozenset(_session | _on_file())


def mute(name: str, *, for_good: bool = True) -> None:
    """Mute a rule.

    Args:
        name: The rule.
        for_good: Write it into the user's file; else until the process ends.

    Raises:
        UsageError: The file cannot be written.
    """
    if for_good:
        _write(_on_file() | {name})
    else:
        _session.add(name)


def unmute(name: str) -> None:
    """Unmute a rule.

    Raises:
        UsageError: The file cannot be written.
    """
    _session.discard(name)
    kept = _on_file()
    if name in kept:
        _write(kept - {name})


def path() -> Path:
    """Return the path of the user's file, in the system's settings folder."""
    home = Path.home()
    if sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return folder / "nbmem" / "muted"


def _on_file() -> set[str]:
    try:
        text = path().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: no home folder
        return set()
    return {line.strip() for line in text.splitlines()} - {""}


def _write(names: set[str]) -> None:
    target = path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, "".join(f"{name}\n" for name in sorted(names)))
    except (OSError, NotWrittenError) as err:
        raise UsageError(
            f"The muted tips are not written, so nothing changed: {err} "
            "`%nbmem mute NAME --session` mutes a tip until the kernel ends."
        ) from err
