"""Send messages through a pipe that a process and its forks share.

No process reads ahead of its own message.
"""

from __future__ import annotations

import os

_HEAD = 8
"""Bytes of a message's length."""


def write(pipe: int, message: bytes) -> None:
    """Send a message.

    Raises:
        BrokenPipeError: The pipe has no reader.
    """
    rest = memoryview(len(message).to_bytes(_HEAD, "little") + message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def read(pipe: int) -> bytes:
    """Wait for a message.

    Raises:
        EOFError: The pipe has no writer any more.
    """
    return _exactly(pipe, int.from_bytes(_exactly(pipe, _HEAD), "little"))


def _exactly(pipe: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(pipe, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
