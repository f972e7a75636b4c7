"""Limits on the size and content of untrusted files.

The size is limited both packed and unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass

from nbmem.core.errors import UsageError
from nbmem.core.units import GIB, MIB, format_bytes, parse_bytes

DEFAULT_SIZE = GIB
"""Bytes of a file, packed and unpacked, that are read by default."""
HOW_TO_RAISE = "If you trust it, raise the limit: --max-size 4GiB, nbmem.open(path, max_size=...)."
MAX_CARDS = 64
"""Cards in one file."""
MAX_FRAMES = 10_000
"""Frames of one stack; Python stops at 1,000 of its own, C++ adds some."""
_ALWAYS = 16 * MIB
"""Bytes to which any packed file may unpack."""
_RATIO = 200
"""Bytes to which each byte of a packed file may unpack beyond that; real snapshots stay below
100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for reading one file; all of them grow with `size`.

    Attributes:
        size: Bytes of the file, packed and unpacked.
        events: Entries of the history, all cards together.
        frames: Frames of all stacks together.
        texts: Names, notes, spans and other rows that are no events.
        tree: Containers in a session's JSON.
    """

    size: int = DEFAULT_SIZE
    events: int = 10_000_000
    frames: int = 20_000_000
    texts: int = 5_000_000
    tree: int = 5_000_000

    @classmethod
    def of(cls, size: int | str | None) -> Limits:
        """Return the limits for files of that size.

        Args:
            size: Bytes, or text such as "4GiB"; None for the default.

        Raises:
            UsageError: It is not a number of bytes.
        """
        if size is None:
            return cls()
        wanted = parse_bytes(size) if isinstance(size, str) else size
        if not isinstance(wanted, int) or wanted < 1:
            raise UsageError(
                f"{size!r} is no limit for a file's size. Write bytes, or text such as 4GiB."
            )
        more = max(1, -(-wanted // DEFAULT_SIZE))
        plain = cls()
        return cls(
            size=wanted,
            events=plain.events * more,
            frames=plain.frames * more,
            texts=plain.texts * more,
            tree=plain.tree * more,
        )

    def unpacked(self, packed: int) -> int:
        """Return the bytes to which a packed file of this size may unpack."""
        return min(self.size, _ALWAYS + _RATIO * packed)

    def too_large(self, name: str, *, unpacks: bool = False) -> str:
        """Return the message for a file that exceeds `size`."""
        what = "unpacks to more than" if unpacks else "is larger than"
        return f"{name} {what} {format_bytes(self.size)}, so it was not read. {HOW_TO_RAISE}"
