"""Read a recording from a session file or a torch snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.files.session import open_session
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.snapshot_session import session_of_snapshot
from nbmem.core.files.untrusted_input import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.session import Session

_ZIP = b"PK"


def read_recording(path: str | Path, max_size: int | str | None = None) -> Session:
    """Read a session file, or a snapshot that torch has written.

    The snapshot is one of torch.cuda.memory._dump_snapshot().

    Args:
        path: The file.
        max_size: Maximum size: bytes, or text such as "4GiB"; None for the default.

    Raises:
        UsageError: There is no such file, or the limit is not valid.
        FileFormatError: It is too large, truncated, hostile or of another kind.
    """
    limits = Limits.of(max_size)
    read = open_session if is_session(path, limits) else session_of_snapshot
    return read(path, limits)


def is_session(path: str | Path, limits: Limits | None = None) -> bool:
    """Return whether a file is a zip archive, as sessions are.

    No pickle begins like a zip archive.

    Raises:
        UsageError: There is no such file.
        FileFormatError: It is too large.
    """
    with open_regular(path, limits or Limits()) as file:
        return file.read(len(_ZIP)) == _ZIP
