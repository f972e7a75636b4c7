"""Folders into which the ranks of a distributed program write files."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.files.rank_journal import SUFFIX, Journal
from nbmem.core.files.rank_journal_reader import read_journal
from nbmem.core.files.session import open_session
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import expand_home
from nbmem.core.suggestions import suggest_path

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.ranks import Rank
    from nbmem.core.session.session import Session

MAX_FILES = 100_000
"""Files of a folder that are read, in the order of their names."""
SESSION_SUFFIX = ".nbmem"
_PLAIN = re.compile(r"[^A-Za-z0-9-]+")


@dataclass(frozen=True, slots=True)
class RankFile:
    """The file that one rank left in the folder.

    Attributes:
        path: The file.
        rank: Its rank.
        found: Its session; or its journal, if the rank did not finish.
        silent_s: Seconds since the last write.
        lives: Whether its process is still running; None if that is on another machine.
    """

    path: Path
    rank: Rank
    found: Session | Journal
    silent_s: float
    lives: bool | None


def session_name(rank: Rank) -> str:
    """Return a session's file name: `rank-3-of-8.node1.4711.nbmem`."""
    return f"{_stem(rank)}{SESSION_SUFFIX}"


def journal_name(rank: Rank) -> str:
    """Return the name of a rank's journal, kept until its session is whole."""
    return f"{_stem(rank)}{SUFFIX}"


def _stem(rank: Rank) -> str:
    number = str(rank.number).zfill(len(str(rank.world - 1)))
    host = _PLAIN.sub("-", rank.host)[:60] or "host"
    return f"rank-{number}-of-{rank.world}.{host}.{rank.pid}"


def rank_files(path: str | Path, limits: Limits | None = None) -> Iterator[RankFile | str]:
    """Yield the rank files in a folder, or a sentence for each other file.

    Sessions without a rank and files of other programs are named and ignored. A journal whose
    session also exists was about to be removed, and is not read.

    Raises:
        UsageError: There is no such folder, or it cannot be read.
    """
    folder = expand_home(path)
    try:
        names = sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
    except FileNotFoundError:
        meant = suggest_path(path, folder=True)
        raise UsageError(f"There is no folder {path}. {meant}") from None
    except OSError as err:
        raise UsageError(f"The folder {path} cannot be read ({err.strerror or err}).") from err
    if len(names) > MAX_FILES:
        yield f"{path} has {len(names):,} files; the first {MAX_FILES:,} by name are read."
    there = set(names[:MAX_FILES])
    for name in names[:MAX_FILES]:
        journal = name.endswith(SUFFIX)
        if journal and name.removesuffix(SUFFIX) + SESSION_SUFFIX in there:
            continue
        if journal or name.endswith(SESSION_SUFFIX):
            yield rank_file(folder / name, limits)
        else:
            yield f"{name} is no file of a rank: it was left alone."


def rank_file(path: Path, limits: Limits | None = None) -> RankFile | str:
    """Read one rank's file, or return a sentence for why it was left out."""
    limits = limits or Limits()
    try:
        if path.name.endswith(SUFFIX):
            return journal_file(path, read_journal(path, limits))
        session = open_session(path, limits)
    except (NbmemError, OSError) as err:
        return f"{path.name} was left out: {err}"
    if session.rank is None:
        return f"{path.name} is of a program of one process and belongs to no world: left alone."
    return RankFile(path, session.rank, session, 0.0, lives=False)


def journal_file(path: Path, journal: Journal) -> RankFile:
    """Describe a journal and whether its process still runs.

    Raises:
        OSError: The file was removed.
    """
    silent = max(0.0, time.time() - path.stat().st_mtime)
    return RankFile(path, journal.rank, journal, silent, _is_running(journal.rank))


def _is_running(rank: Rank) -> bool | None:
    """Return whether a rank's process ID exists on this host.

    The result is None for another host. A later process may have the same ID.
    """
    if rank.host != socket.gethostname() or rank.pid <= 0:
        return None
    import psutil

    try:
        return bool(psutil.pid_exists(rank.pid))  # os.kill(pid, 0) is a Ctrl-C on Windows
    except (OSError, OverflowError):
        return False
