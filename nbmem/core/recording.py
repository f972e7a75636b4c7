"""A recording from a file, whoever wrote it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from nbmem.core.session_file import open_session
from nbmem.core.snapshot_session import session_of_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session import Session


def read_recording(path: str | Path) -> Session:
    """Read a session that nbmem saved, or a snapshot that torch's _dump_snapshot() wrote.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is truncated, hostile or of another kind.
    """
    return open_session(path) if zipfile.is_zipfile(path) else session_of_snapshot(path)
