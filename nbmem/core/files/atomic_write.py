"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nbmem.core.errors import NotWrittenError
from nbmem.core.files.untrusted_input import expand_home

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` when the block ends.

    Until then it has a temporary name in the same folder. It is removed if the block raises. If
    `path` is a link, its target is replaced. A path that is no regular file (`/dev/stdout`) is
    written to directly.

    Args:
        path: The file; `~` is the home folder.

    Raises:
        NotWrittenError: It cannot be written; a previous file is unchanged.
    """
    given = expand_home(path)
    try:
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise NotWrittenError(f"{path} is a folder. Name a file inside it.")
        if given.exists() and not given.is_file():
            with given.open("wb") as itself:
                yield itself
            return
        partial, file = _create_temporary(target)
        try:
            with file:
                yield file
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as err:
        raise NotWrittenError(_why_not(path, given, err)) from err
    except ValueError as err:
        if "null" not in str(err):
            raise
        raise NotWrittenError(f"{str(path)!r} is no name of a file ({err}).") from None


def new_folder(path: str | Path) -> Path:
    """Create a folder for the ranks' files if it is missing.

    Every rank may create it.

    Raises:
        NotWrittenError: It cannot be created.
    """
    folder = expand_home(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise NotWrittenError(
            f"The folder {path} cannot be made ({err.strerror or err}). Name another place."
        ) from err
    return folder


def write_text(path: str | Path, text: str) -> Path:
    """Write a text in UTF-8, with `?` for characters that it cannot hold.

    Such a character is half a surrogate pair.

    Returns:
        The file.

    Raises:
        NotWrittenError: It cannot be written; a previous file is unchanged.
    """
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "replace"))
    return expand_home(path)


def write_json(path: str | Path, form: dict[str, Any]) -> Path:
    """Write a JSON object, indented and with a final line break.

    The object is one of nbmem's stable formats. Errors are those of `write_text`.
    """
    return write_text(path, f"{json.dumps(form, indent=2)}\n")


def _create_temporary(target: Path) -> tuple[Path, IO[bytes]]:
    """Create a temporary file in the target's folder, with its permissions."""
    # O_EXCL follows no link and opens no existing file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    partial = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.part")
    handle = os.open(partial, flags, 0o666)
    if target.exists() and hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):
            os.fchmod(handle, target.stat().st_mode & 0o777)
    return partial, os.fdopen(handle, "wb")


def _why_not(path: str | Path, target: Path, err: OSError) -> str:
    folder = target.absolute().parent
    if err.errno == errno.ENOENT and not folder.is_dir():
        return f"{path} cannot be written: there is no folder {folder}. Make it first."
    kept = "What was there before is still there. " if target.exists() else ""
    if err.errno in _FULL:
        return f"{path} cannot be written: the disk is full. {kept}Make room, or name another disk."
    if err.errno in _CLOSED:
        return (
            f"{path} cannot be written ({err.strerror}). {kept}"
            "Name a file in a folder that you may write to."
        )
    return f"{path} cannot be written ({err.strerror or err}). {kept}".rstrip()
