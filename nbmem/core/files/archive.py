"""Read a session's zip archive without trusting its directory.

zipfile reads whatever size an entry states, and lets entries overlap or share one name. Here the
entries are validated first. Then each is read up to its stated length, and no further.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, Self

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbmem.core.files.size_limits import Limits

_MAX_ENTRIES = 10_000
"""Columns of 64 cards, and more."""
_MAX_DIRECTORY = 4 * MIB
"""Bytes of the archive's directory; an entry takes about 80."""
_LOCAL_HEADER = 30
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_PACKINGS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_JSON_ALWAYS, _JSON_RATIO = 4 * MIB, 100
"""Limits as for whole files in size_limits.py; JSON takes more memory than bytes."""
_NODES_FREE, _BYTES_FOR_ONE = 100_000, 4
"""Lists and objects that any JSON may have, and the bytes that justify each further one."""
_COLUMN = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(\|u1|<i8)', 'fortran_order': False, "
    rb"'shape': \((\d{1,12}),\), \} *\n",
    re.DOTALL,
)
_DTYPES = {b"|u1": np.uint8, b"<i8": np.int64}


class _Directory(io.BufferedReader):
    """A file reader that bounds reads while zipfile parses the directory.

    zipfile reads a directory at once, of any size.
    """

    bounded = True

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.bounded:
            return super().read(size)
        wanted = _MAX_DIRECTORY + 1 if size is None or size < 0 else size
        data = super().read(wanted) if wanted <= _MAX_DIRECTORY + 1 else None
        if data is None or len(data) > _MAX_DIRECTORY:
            raise FileFormatError("its directory is larger than that of any session")
        return data


class Archive:
    """The entries of a session's file.

    Every error is a FileFormatError or one of zipfile's.

    Args:
        file: The file, open; it is closed with the archive.
        limits: Maximum sizes.
    """

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._limits = limits
        source = _Directory(file)  # type: ignore[arg-type]
        size = source.seek(0, io.SEEK_END)
        self._zip = zipfile.ZipFile(source)
        source.bounded = False
        self._entries = self._checked(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        source = self._zip.fp
        self._zip.close()
        if source is not None:
            source.close()

    def _checked(self, size: int) -> dict[str, zipfile.ZipInfo]:
        entries = self._zip.infolist()
        if len(entries) > _MAX_ENTRIES:
            _refuse(f"it has {len(entries):,} entries; a session has at most {_MAX_ENTRIES:,}")
        end = 0
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            name = repr(entry.filename[:80])
            if entry.flag_bits & _ENCRYPTED:
                _refuse(f"its entry {name} is encrypted")
            if entry.compress_type not in _PACKINGS:
                _refuse(f"its entry {name} is packed in a way that no session is")
            if entry.header_offset < end:
                _refuse(f"its entry {name} overlaps another")
            end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
        if end > size:
            _refuse("its entries are longer than the file")
        whole, allowed = sum(entry.file_size for entry in entries), self._limits.unpacked(size)
        if whole > allowed:
            _refuse(
                f"it unpacks to {format_bytes(whole)} from {format_bytes(size)}; "
                f"at most {format_bytes(allowed)} are read"
            )
        found = {entry.filename: entry for entry in entries}
        if len(found) < len(entries):
            _refuse("two of its entries have one name")
        return found

    def read(self, name: str) -> bytes:
        """Read one entry of exactly the length that the directory states."""
        entry = self._entries.get(name)
        if entry is None:
            _refuse(f"it has no {name}")
        with self._zip.open(entry) as part:
            data = part.read(entry.file_size + 1)
        if len(data) != entry.file_size:
            _refuse(f"its entry {name} is not as long as it says")
        return data

    def json(self, name: str) -> Any:
        """Read one entry of JSON; see `plain_json`."""
        entry = self._entries.get(name)
        if entry is not None and entry.file_size > (
            _JSON_ALWAYS + _JSON_RATIO * entry.compress_size
        ):
            _refuse(f"its {name} unpacks to {format_bytes(entry.file_size)}, as no session's does")
        return plain_json(self.read(name), f"its {name}", self._limits)

    def column(self, name: str) -> NDArray[Any]:
        """Read one column of uint8 or int64 in numpy's format."""
        data = self.read(f"{name}.npy")
        head = _COLUMN.match(data)
        if head is None:
            _refuse(f"its column {name} is not a row of uint8 or int64")
        kind, count = _DTYPES[head[1]], int(head[2])
        if len(data) - head.end() != count * np.dtype(kind).itemsize:
            _refuse(f"its column {name} is not as long as it says")
        return np.frombuffer(data, kind, count, head.end())


def plain_json(data: bytes, what: str, limits: Limits) -> Any:
    """Parse untrusted JSON; NaN and infinities become None.

    Args:
        data: The text in UTF-8.
        what: Its name in a message.
        limits: Maximum sizes.

    Raises:
        FileFormatError: It has too many lists and objects.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    nodes = data.count(b"[") + data.count(b"{")
    if nodes > min(limits.tree, _NODES_FREE + len(data) // _BYTES_FOR_ONE):
        raise FileFormatError(f"{what} has {nodes:,} lists and objects")
    return json.loads(data.decode("utf-8"), parse_constant=lambda _: None)


def _refuse(why: str) -> NoReturn:
    raise FileFormatError(why)
