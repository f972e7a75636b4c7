"""Exceptions that nbmem raises on purpose.

Each message states what happened, what it means and what to do.
"""

from __future__ import annotations


class NbmemError(Exception):
    """Base class of nbmem's exceptions, whose messages a user can act on."""


class UsageError(NbmemError):
    """An option, a name or a file that the user gave cannot be used."""


class ProbeUnavailableError(NbmemError):
    """A source of readings does not exist here; the rest goes on without it."""


class FileFormatError(NbmemError):
    """A file is truncated, hostile, or of a kind that nbmem does not read."""


class NotWrittenError(NbmemError):
    """A file could not be written; what was there before is still there."""


class LedgerImbalanceError(NbmemError):
    """The categories do not add up to what the device reports: nbmem's fault."""


class ReplayError(NbmemError):
    """A recorded sequence of allocator events contradicts itself."""
