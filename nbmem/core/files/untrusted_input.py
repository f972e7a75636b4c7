"""Open and unpack untrusted files: regular files of bounded size only."""

from __future__ import annotations

import errno
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nbmem.core.errors import FileFormatError, UsageError
from nbmem.core.suggestions import suggest_path
from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from nbmem.core.files.size_limits import Limits

_XZ, _GZIP = b"\xfd7zXZ\x00", b"\x1f\x8b"
_CHUNK = 1 << 16
_DICTIONARY = 128 * MIB
"""Memory that unpacking xz may take: `xz -9` needs 65 MiB."""
_STREAMS = 64
"""Packed streams in sequence; `cat a.gz b.gz` creates two."""


def expand_home(path: str | Path) -> Path:
    """Return a path with `~` expanded, unchanged if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_folder(path: str | Path) -> bool:
    """Return whether a path is an existing folder or ends with a slash."""
    return str(path).endswith(("/", "\\")) or expand_home(path).is_dir()


def open_regular(path: str | Path, limits: Limits) -> BinaryIO:
    """Open a regular file of bounded size for reading.

    Args:
        path: The file; a link is followed.
        limits: Maximum size.

    Raises:
        UsageError: It does not exist, is no regular file, or cannot be read.
        FileFormatError: It is larger than the limit.
    """
    source = expand_home(path)
    # Without O_NONBLOCK, opening a pipe without a writer waits forever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if source.is_dir():
            raise UsageError(f"{path} is a folder; name a file inside it.")
        handle = os.open(source, flags)
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}. {suggest_path(path)}") from None
    except OSError as err:
        if err.errno == errno.ENXIO:  # a socket
            raise UsageError(_not_regular(path)) from None
        raise UsageError(f"{path} cannot be read ({err.strerror or err}).") from err
    except ValueError as err:  # a NUL in the name
        raise UsageError(f"{str(path)!r} is no name of a file ({err}).") from None
    file = os.fdopen(handle, "rb")
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        file.close()
        raise UsageError(_not_regular(path))
    if about.st_size > limits.size:
        file.close()
        raise FileFormatError(limits.too_large(str(path)))
    return file


def _not_regular(path: str | Path) -> str:
    return f"{path} is a device, a pipe or a socket and not a file. Copy its content into a file."


def read_content(path: str | Path, limits: Limits) -> bytes:
    """Return the bytes of a file, unpacked if it is an xz or gzip file.

    Args:
        path: The file.
        limits: Maximum sizes, packed and unpacked.

    Raises:
        UsageError: As for `open_regular`.
        FileFormatError: It is too large, or packed and broken.
    """
    with open_regular(path, limits) as file:
        try:
            data = file.read(limits.size + 1)
        except (OSError, MemoryError) as err:
            raise UsageError(f"{path} cannot be read ({err}).") from err
    if len(data) > limits.size:
        raise FileFormatError(limits.too_large(str(path)))
    if data.startswith(_XZ):
        return _unpacked(data, _XZ, _new_xz, str(path), limits)
    if data.startswith(_GZIP):
        return _unpacked(data, _GZIP, lambda: zlib.decompressobj(wbits=31), str(path), limits)
    return data


def _new_xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_DICTIONARY)


def _unpacked(
    data: bytes, magic: bytes, decompressor: Callable[[], Any], name: str, limits: Limits
) -> bytes:
    allowed = limits.unpacked(len(data))
    try:
        parts = list(_streams(data, magic, decompressor, allowed))
    except (lzma.LZMAError, zlib.error, EOFError, MemoryError) as err:
        raise FileFormatError(f"{name} is packed and cannot be unpacked: {err}.") from err
    if sum(map(len, parts)) > allowed:
        raise FileFormatError(_bomb(name, len(data), limits))
    return b"".join(parts)


def _streams(
    data: bytes, magic: bytes, decompressor: Callable[[], Any], allowed: int
) -> Iterator[bytes]:
    """Yield the unpacked data piece by piece, up to the first excess byte."""
    at, left = 0, allowed
    for _ in range(_STREAMS):
        stream = decompressor()
        while not stream.eof:
            chunk = data[at : at + _CHUNK]
            if not chunk:
                raise EOFError("it is truncated")
            at += len(chunk)
            part = stream.decompress(chunk, left + 1)
            yield part
            left -= len(part)
            if left < 0:
                return
        at -= len(stream.unused_data)
        if not data.startswith(magic, at):  # the end, or padding after it
            return
    raise EOFError(f"it is in more than {_STREAMS} pieces")


def _bomb(name: str, packed: int, limits: Limits) -> str:
    allowed = limits.unpacked(packed)
    if allowed == limits.size:
        return limits.too_large(name, unpacks=True)
    return (
        f"{name} unpacks to more than {format_bytes(allowed)} from {format_bytes(packed)}, which "
        "no recording does; nothing of it was read. If you trust it, unpack it yourself."
    )
