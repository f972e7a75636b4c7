"""Session files: a zip of versioned JSON and one .npy for each column.

A session file never contains a pickle.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.files.allocator_settings import plain_settings
from nbmem.core.files.archive import Archive
from nbmem.core.files.atomic_write import atomic_write
from nbmem.core.files.header import (
    info_json,
    info_of,
    refusal_json,
    refusal_of,
    source_json,
    source_of,
    span_json,
    span_of,
    stacks_of,
)
from nbmem.core.files.json_fields import MAX_INTEGER, Fields, facts
from nbmem.core.files.rank_json import rank_json, rank_of
from nbmem.core.files.session_checks import check
from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import expand_home, open_regular
from nbmem.core.session.events import Blocks, Columns, Events, Frame, Layout, Segments
from nbmem.core.session.frameworks import FrameworkReadings
from nbmem.core.session.host_memory import MachineReadings
from nbmem.core.session.session import (
    BeforeReturn,
    BlockUses,
    Calls,
    CardSamples,
    CollectedFrees,
    CounterSamples,
    DeviceTrace,
    Holders,
    Session,
    StorageLabels,
)
from nbmem.core.session.tensor_names import SENTENCE, printable_text

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.core.session.ranks import Rank

FORMAT = 2
"""Increased when a reader of the older format could no longer read the file."""
_READ = (1, 2)
"""Formats that are read. Format 1 wrote each stack with all its frames into the JSON."""

_CODES = {"action", "category", "expandable", "kind", "small", "state"}
_MAX_REFUSALS = 10_000
_C = TypeVar("_C", bound=Columns)


def save_session(
    session: Session, path: str | Path, beside: Mapping[str, bytes] | None = None
) -> Path:
    """Write a session; the file is replaced only when it is whole.

    Args:
        session: What was recorded.
        path: The file.
        beside: Further entries of the archive by name, for other readers; none is read here.

    Returns:
        The path, with `.nbmem` added if it had no suffix.

    Raises:
        UsageError: It cannot be written there.
    """
    target = expand_home(path)
    if not target.suffix:
        target = target.with_suffix(".nbmem")
    frames: dict[Frame, int] = {}
    stacks = [[frames.setdefault(frame, len(frames)) for frame in s] for s in session.stacks]
    columns = {
        "stacks/frame": np.array([number for stack in stacks for number in stack], np.int64),
        "stacks/length": np.array([len(stack) for stack in stacks], np.int64),
    }
    for index, device in enumerate(session.devices):
        for name, table in _tables(device).items():
            columns |= {f"{index}/{name}/{column}": array for column, array in table.columns()}
    with (
        atomic_write(target) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        archive.writestr("session.json", json.dumps(_head(session, frames)))
        for name, data in (beside or {}).items():
            archive.writestr(name, data, compresslevel=9)
        for name, array in columns.items():
            kind = np.uint8 if name.rpartition("/")[2] in _CODES else np.dtype("<i8")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                np.lib.format.write_array(
                    out, np.ascontiguousarray(array, kind), version=(1, 0), allow_pickle=False
                )
    return target


def open_session(path: str | Path, limits: Limits | None = None) -> Session:
    """Read a session that `save_session` wrote.

    Raises:
        UsageError: The file is missing, or not a file.
        FileFormatError: It is too large, truncated, hostile, no session, or of a newer format.
    """
    limits = limits or Limits()
    with _reading(path, limits) as (head, archive):
        session = _session(head, archive)
        check(session, limits)
        return session


def read_rank(path: str | Path) -> tuple[Rank | None, str | None]:
    """Read a session's rank and the exception that ended it.

    Its recording is not read.

    Raises:
        UsageError, FileFormatError: As of `open_session`.
    """
    with _reading(path, Limits()) as (head, _):
        return _rank(head), _error(head)


@contextmanager
def _reading(path: str | Path, limits: Limits) -> Iterator[tuple[Fields, Archive]]:
    """Open a session for its head and its columns, and explain any error."""
    file = open_regular(path, limits)
    try:
        with file, Archive(file, limits) as archive:
            yield _read_head(archive, path), archive
    except _NewerFormatError as err:
        raise FileFormatError(str(err)) from None
    except FileFormatError as err:
        raise FileFormatError(
            f"{path} is not a whole nbmem session: {err}. "
            "It may be truncated or of another kind; save the session again."
        ) from None
    except Exception as err:
        raise FileFormatError(
            f"{path} is not a whole nbmem session ({type(err).__name__}: {str(err)[:200]}). "
            "It may be truncated or of another kind; save the session again."
        ) from err


class _NewerFormatError(FileFormatError):
    """A whole session of a format that is not known here."""


def _tables(device: DeviceTrace) -> dict[str, Columns]:
    layouts = {"end": device.end} | ({"start": device.start} if device.start else {})
    return {
        **{f"{at}/segments": layout.segments for at, layout in layouts.items()},
        **{f"{at}/blocks": layout.blocks for at, layout in layouts.items()},
        "events": device.events,
        "marks": device.counter_samples,
        "samples": device.samples,
        "identities": device.storage_labels,
        **({"holders": device.holders} if device.holders is not None else {}),
        **({"owners": device.owners} if device.owners is not None else {}),
        **({"machine": device.machine} if device.machine is not None else {}),
        **({"calls": device.calls} if device.calls is not None else {}),
        **({"collected": device.collected} if device.collected is not None else {}),
        **({"block_uses": device.block_uses} if device.block_uses is not None else {}),
        **({"before_return": then.holders} if (then := device.before_return) is not None else {}),
    }


def _head(session: Session, frames: Iterable[Frame]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": session.name,
        "created_ns": session.created_ns,
        "notes": session.notes,
        "names": session.names,
        "error": session.error,
        "facts": dict(session.facts),
        "source": session.source and source_json(session.source),
        "rank": session.rank and rank_json(session.rank),
        "frames": [[frame.file, frame.line, frame.function] for frame in frames],
        "spans": [span_json(span) for span in session.spans],
        "refusals": [refusal_json(refusal) for refusal in session.refusals],
        "devices": [
            {
                "info": info_json(device.info),
                "release": device.release,
                "settings": dict(device.settings),
                "dropped": device.dropped,
                "start_known": device.start is not None,
                "holders_known": device.holders is not None,
                "owners_known": device.owners is not None,
                "machine_known": device.machine is not None,
                "calls_known": device.calls is not None,
                "collected_known": device.collected is not None,
                "block_uses_known": device.block_uses is not None,
                "before_return": (then := device.before_return)
                and {"function": then.function, "event": then.event, "freed": then.freed},
                "other_processes": dict(device.other_processes),
                "kept_pools": device.kept_pools,
            }
            for device in session.devices
        ],
    }


def _read_head(archive: Archive, path: str | Path) -> Fields:
    raw = archive.json("session.json")
    head = Fields(raw, "its session.json")
    known = head.number("format", least=-(1 << 62))
    if known not in _READ:
        raise _NewerFormatError(
            f"{path} has session format {known}, this nbmem reads {_READ[0]} and {_READ[1]}. "
            "Open it with the nbmem that wrote it, or update nbmem."
        )
    return head


def _rank(head: Fields) -> Rank | None:
    return head.maybe(lambda name: rank_of(head.object(name)), "rank")


def _error(head: Fields) -> str | None:
    return head.maybe(lambda name: head.text(name, SENTENCE), "error")


def _session(head: Fields, archive: Archive) -> Session:
    refusals = head.items("refusals")
    if len(refusals) > _MAX_REFUSALS:
        raise FileFormatError(f"it has {len(refusals):,} requests that were refused")
    return Session(
        name=head.text("name"),
        created_ns=head.time("created_ns"),
        devices=tuple(_device(raw, archive, at) for at, raw in enumerate(head.items("devices"))),
        spans=tuple(span_of(raw, at) for at, raw in enumerate(head.items("spans"))),
        stacks=stacks_of(head, archive),
        names=head.texts("names"),
        notes=head.texts("notes", SENTENCE),
        error=_error(head),
        # Files of nbmem 0.1 have none of these.
        facts=facts(head.object("facts")),
        source=head.maybe(lambda name: source_of(head.object(name)), "source"),
        rank=_rank(head),
        refusals=tuple(refusal_of(raw) for raw in refusals),
    )


def _device(raw: Any, archive: Archive, index: int) -> DeviceTrace:
    head = Fields(raw, f"card {index}")

    def table(kind: type[_C], name: str) -> _C:
        return _read(kind, archive, f"{index}/{name}")

    def layout(at: str) -> Layout:
        return Layout(
            segments=table(Segments, f"{at}/segments"), blocks=table(Blocks, f"{at}/blocks")
        )

    others = Fields(head.object("other_processes"), "the list of other processes")
    return DeviceTrace(
        info=info_of(head.object("info")),
        release=head.text("release"),
        settings=plain_settings(head.object("settings")),
        start=layout("start") if head.flag("start_known") else None,
        events=table(Events, "events"),
        end=layout("end"),
        dropped=head.number("dropped"),
        counter_samples=table(CounterSamples, "marks"),
        samples=table(CardSamples, "samples"),
        storage_labels=table(StorageLabels, "identities"),
        other_processes={
            printable_text(n): others.count(n) for n in head.object("other_processes")
        },
        # Files of nbmem 0.1 have none.
        holders=table(Holders, "holders") if head.flag("holders_known") else None,
        owners=table(FrameworkReadings, "owners") if head.flag("owners_known") else None,
        machine=table(MachineReadings, "machine") if head.flag("machine_known") else None,
        calls=table(Calls, "calls") if head.flag("calls_known") else None,
        kept_pools=head.numbers("kept_pools", least=-MAX_INTEGER),
        collected=table(CollectedFrees, "collected") if head.flag("collected_known") else None,
        block_uses=table(BlockUses, "block_uses") if head.flag("block_uses_known") else None,
        before_return=head.maybe(
            lambda name: _before_return(head.object(name), table(Holders, name)), "before_return"
        ),
    )


def _before_return(raw: Mapping[str, Any], holders: Holders) -> BeforeReturn:
    head = Fields(raw, "its last function")
    event, freed = head.number("event"), head.number("freed")
    return BeforeReturn(function=head.text("function"), event=event, freed=freed, holders=holders)


def _read(kind: type[_C], archive: Archive, folder: str) -> _C:
    columns = {}
    for field in fields(kind):  # type: ignore[arg-type]
        array = archive.column(f"{folder}/{field.name}")
        wanted = np.uint8 if field.name in _CODES else np.int64
        if array.dtype != wanted:
            raise FileFormatError(f"column {folder}/{field.name} is not a row of {wanted.__name__}")
        columns[field.name] = array
    if len({len(array) for array in columns.values()}) > 1:
        raise FileFormatError(f"the columns of {folder} differ in length")
    return kind(**columns)
