"""Every error that nbmem raises on purpose: what happened, what it means, what to do."""

from __future__ import annotations


class NbmemError(Exception):
    """Base of nbmem's own errors. The text is one that a user can act on."""


class UsageError(NbmemError):
    """An option, a name or a file that the user gave cannot be used."""


class ProbeUnavailableError(NbmemError):
    """A source of readings does not exist here; the rest goes on without it."""


class FileFormatError(NbmemError):
    """A file is truncated, hostile, or of a kind that nbmem does not read."""


class NotWrittenError(NbmemError):
    """A file could not be written; what was there before is still there."""


class LedgerImbalanceError(NbmemError):
    """The categories do not add up to what the device reports: a fault of nbmem's."""


class ReplayError(NbmemError):
    """A recorded sequence of allocator events contradicts itself."""
