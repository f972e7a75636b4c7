"""Load untrusted pickles: check every opcode before anything is built.

Python's unpickler trusts a file's contents. Nine bytes can make it allocate gigabytes, and forty
nested tuples as a dict's key can keep it busy forever. A snapshot of torch's needs few opcodes:
containers, texts, numbers, pairs of numbers, and references to earlier objects. One regular
expression matches all of them (100 MB in a second) and stops at the first other opcode.
"""

from __future__ import annotations

import io
import pickle
import re
from reprlib import Repr
from typing import Any, NoReturn

from nbmem.core.errors import FileFormatError
from nbmem.core.runtime.garbage_collector import without_collector

_LONGEST_TEXT = 1 << 20
"""Bytes of one text; paths and names are shorter."""
_MAX_WIDE = 1_000
"""Integers of more than 64 bits: torch's settings have a few. Many could have equal hashes."""
_WIDE = 11
"""Bytes of an opcode with an integer of 65 to 72 bits."""
_CONTAINERS_FREE, _BYTES_FOR_ONE = 100_000, 4
"""Containers that any file may have, and the bytes that justify each further one.

An empty list is one byte in the file and 70 in memory; real files have 9 to 12 bytes for each.
"""
_CONTAINERS = b"]}\x86"


def _texts(behind: bytes = b"") -> bytes:
    """Build a pattern for a text of less than 256 bytes behind its length.

    The lengths are in groups of 16, which the regular expression skips quickly.
    """
    groups = []
    for least in range(0, 256, 16):
        sizes = [
            re.escape(bytes([size])) + behind + b".{%d}" % size for size in range(least, least + 16)
        ]
        ends = re.escape(bytes([least])), re.escape(bytes([least + 15]))
        groups.append(b"(?=[%b-%b])(?:%b)" % (*ends, b"|".join(sizes)))
    return b"(?:" + b"|".join(groups) + b")"


_INT = rb"(?:K.|M..|J.{4})"
_PAIR = _INT + _INT + rb"\x86"
_LONG = rb"\x8a(?:%b)" % b"|".join(  # the lengths of addresses and times first
    rb"\x%02x.{%d}" % (size, size) for size in (6, 7, 8, 5, 4, 3, 2, 1, 0)
)
_PLAIN = rb"[](}aseu0N\x88\x89\x94)]"
"""Lists, dicts and constants; 0x94 stores an object in the memo."""
_KNOWN = re.compile(
    rb"(?s)(?:"
    + b"|".join(
        (
            # From the memo: a key, usually with its value. Without this row the match takes twice
            # as long.
            rb"h.(?:h.|%b|J.{4}|K.(?!%b\x86)|j.{4})?+(?:h.)*+%b*+" % (_LONG, _INT, _PLAIN),
            _PLAIN + rb"++",
            rb"(?:j.{4})++",
            _PAIR,  # the only kind of tuple: a pool's id
            _INT,
            _LONG,
            rb"\x8c" + _texts(),
            rb"q.",
            rb"r..[\x00-\x0f]\x00",  # a memo index below a million
            rb"X(?=.\x00\x00\x00)" + _texts(rb"\x00\x00\x00"),
            rb"G.{8}",
            rb"\x95.{8}",  # a frame
            rb"\x80[\x02-\x05]",  # the protocol
        )
    )
    + rb")++"
)
_LENGTHS = {"h": 2, "j": 5, "K": 2, "M": 3, "J": 5, "q": 2, "r": 5, "G": 9, "\x95": 9, "\x80": 2}
"""Bytes of an opcode with its argument; texts and long integers state their own."""
_STOP = b"."
_RAISES = b"cPQi\x93"
"""Opcodes at which the unpickler below raises; what follows them is not reached."""
_short = Repr()
_short.maxstring = _short.maxother = 80


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for containers, texts and numbers.

    Anything that would have to be imported is refused.
    """

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        name = f"{module_name}.{global_name}"
        raise FileFormatError(
            f"The pickle wants {name[:120]}, which no snapshot of torch's holds: "
            "it could run code when loaded, so nothing of it was loaded."
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise FileFormatError(
            f"The pickle refers to something outside of it ({_short.repr(pid)}), as no snapshot of "
            "torch's does; nothing of it was loaded."
        )


def load_plain(data: bytes) -> Any:
    """Load a pickle of containers, texts and numbers.

    Raises:
        FileFormatError: It needs code, or has opcodes or sizes that no snapshot of torch's has.
        Exception: It is broken: a broken pickle can raise almost anything.
    """
    _check_opcodes(data)
    return without_collector(_PlainUnpickler(io.BytesIO(data)).load)


def _check_opcodes(data: bytes) -> None:
    """Refuse a pickle with unknown opcodes or disproportionate sizes.

    Such a pickle could take time or memory out of all proportion to its length.
    """
    at = wide = 0
    while True:
        known = _KNOWN.match(data, at)
        at = at if known is None else known.end()
        code = data[at : at + 1]
        if not code or code in _RAISES or code == _STOP:
            break
        length = _length(data, at)
        if length > _LONGEST_TEXT:
            raise FileFormatError(f"A text at byte {at:,} of it claims to have {length:,} bytes.")
        if at + length > len(data):
            raise EOFError(f"it ends in the middle of what begins at byte {at:,}")
        wide += code == b"\x8a"
        if (
            code == b"X"
            or (code == b"\x8a" and length == _WIDE and wide < _MAX_WIDE)
            or (code == b"r" and int.from_bytes(data[at + 1 : at + 5], "little") <= at)
        ):
            at += length
        elif not at:
            raise pickle.UnpicklingError("it does not begin as one")
        else:
            raise FileFormatError(
                f"The pickle has 0x{data[at : at + 2].hex()} at byte {at:,}, which no snapshot of "
                "torch's needs; nothing of it was loaded."
            )
    _count_containers(data, at)


def _length(data: bytes, at: int) -> int:
    """Return the bytes of the opcode at a place with its argument.

    The length of a text or a long integer is the one that the file states.
    """
    code = data[at : at + 1]
    if code == b"X":
        return 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    if code in {b"\x8a", b"\x8c"}:
        return 2 + int.from_bytes(data[at + 1 : at + 2], "little")
    return _LENGTHS.get(code.decode("latin-1"), 1)


def _count_containers(data: bytes, end: int) -> None:
    """Refuse more containers than the file's length justifies.

    Bytes of numbers and texts that look like containers are also counted.
    """
    allowed, step = _CONTAINERS_FREE + end // _BYTES_FOR_ONE, 1 << 20
    found = 0
    for begin in range(0, end, step):
        part = data[begin : min(end, begin + step)]
        found += len(part) - len(part.translate(None, _CONTAINERS))
    if found > allowed:
        raise FileFormatError(
            f"The pickle makes up to {found:,} lists and dicts out of {end:,} bytes, which no "
            "snapshot of torch's does; nothing of it was loaded."
        )
