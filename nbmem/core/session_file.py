"""Sessions on disk: versioned JSON beside one .npy for each column, in a zip; never a pickle."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nbmem.core.errors import FileFormatError
from nbmem.core.events import Blocks, Columns, Events, Frame, Layout, Segments
from nbmem.core.oom import Refusal
from nbmem.core.session import (
    DeviceInfo,
    DeviceTrace,
    Holders,
    Identities,
    Marks,
    Samples,
    Session,
)
from nbmem.core.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""Raised when a reader of the older format could no longer read the file."""

_CODES = {"action", "category", "expandable", "kind", "small", "state"}
_C = TypeVar("_C", bound=Columns)


def save_session(session: Session, path: str | Path) -> Path:
    """Write a session; the file is replaced only when it is whole.

    Returns:
        The path, with `.nbmem` added if it had no suffix.
    """
    target = Path(path)
    if not target.suffix:
        target = target.with_suffix(".nbmem")
    partial = target.with_name(target.name + ".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("session.json", json.dumps(_head(session)))
        for index, device in enumerate(session.devices):
            for name, table in _tables(device).items():
                for column, array in table.columns():
                    with archive.open(f"{index}/{name}/{column}.npy", "w", force_zip64=True) as out:
                        np.lib.format.write_array(out, array, allow_pickle=False)
    partial.replace(target)
    return target


def open_session(path: str | Path) -> Session:
    """Read a session that `save_session` wrote.

    Raises:
        FileFormatError: The file is missing, truncated, no session, or of a newer format.
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            return _session(_read_head(archive, source), archive)
    except FileNotFoundError:
        raise FileFormatError(f"There is no file {source}. Check the path.") from None
    except IsADirectoryError:
        raise FileFormatError(f"{source} is a folder; name a session file inside it.") from None
    except FileFormatError:
        raise
    except Exception as err:
        raise FileFormatError(
            f"{source} is not a whole nbmem session ({type(err).__name__}: {err}). "
            "It may be truncated or of another kind; save the session again."
        ) from err


def _tables(device: DeviceTrace) -> dict[str, Columns]:
    layouts = {"end": device.end} | ({"start": device.start} if device.start else {})
    return {
        **{f"{at}/segments": layout.segments for at, layout in layouts.items()},
        **{f"{at}/blocks": layout.blocks for at, layout in layouts.items()},
        "events": device.events,
        "marks": device.marks,
        "samples": device.samples,
        "identities": device.identities,
        **({"holders": device.holders} if device.holders is not None else {}),
    }


def _head(session: Session) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": session.name,
        "created_ns": session.created_ns,
        "notes": session.notes,
        "names": session.names,
        "error": session.error,
        "facts": dict(session.facts),
        "stacks": [[[f.file, f.line, f.function] for f in stack] for stack in session.stacks],
        "spans": [asdict(span) for span in session.spans],
        "refusals": [asdict(refusal) for refusal in session.refusals],
        "devices": [
            {
                "info": asdict(device.info),
                "release": device.release,
                "settings": dict(device.settings),
                "dropped": device.dropped,
                "start_known": device.start is not None,
                "holders_known": device.holders is not None,
                "other_processes": dict(device.other_processes),
            }
            for device in session.devices
        ],
    }


def _read_head(archive: zipfile.ZipFile, source: Path) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(archive.read("session.json"))
    if head.get("format") != FORMAT:
        raise FileFormatError(
            f"{source} has session format {head.get('format')}, this nbmem reads {FORMAT}. "
            "Open it with the nbmem that wrote it, or update nbmem."
        )
    return head


def _session(head: Mapping[str, Any], archive: zipfile.ZipFile) -> Session:
    return Session(
        name=head["name"],
        created_ns=head["created_ns"],
        devices=tuple(
            _device(device, archive, index) for index, device in enumerate(head["devices"])
        ),
        spans=tuple(
            Span(**{**span, "first": tuple(span["first"]), "last": tuple(span["last"])})
            for span in head["spans"]
        ),
        stacks=tuple(tuple(Frame(*frame) for frame in stack) for stack in head["stacks"]),
        names=tuple(head["names"]),
        notes=tuple(head["notes"]),
        error=head["error"],
        # Files of nbmem 0.1 have neither.
        facts=head.get("facts") or {},
        refusals=tuple(
            Refusal(**{**refusal, "stack": tuple(Frame(**frame) for frame in refusal["stack"])})
            for refusal in head.get("refusals", ())
        ),
    )


def _device(head: Mapping[str, Any], archive: zipfile.ZipFile, index: int) -> DeviceTrace:
    info = dict(head["info"])
    capability = info["capability"]
    info["capability"] = tuple(capability) if capability else None

    def table(kind: type[_C], name: str) -> _C:
        return _read(kind, archive, f"{index}/{name}")

    def layout(at: str) -> Layout:
        return Layout(
            segments=table(Segments, f"{at}/segments"), blocks=table(Blocks, f"{at}/blocks")
        )

    return DeviceTrace(
        info=DeviceInfo(**info),
        release=head["release"],
        settings=head["settings"],
        start=layout("start") if head["start_known"] else None,
        events=table(Events, "events"),
        end=layout("end"),
        dropped=head["dropped"],
        marks=table(Marks, "marks"),
        samples=table(Samples, "samples"),
        identities=table(Identities, "identities"),
        other_processes=head["other_processes"],
        # Files of nbmem 0.1 have none.
        holders=table(Holders, "holders") if head.get("holders_known") else None,
    )


def _read(kind: type[_C], archive: zipfile.ZipFile, folder: str) -> _C:
    columns = {}
    for field in fields(kind):  # type: ignore[arg-type]
        raw = io.BytesIO(archive.read(f"{folder}/{field.name}.npy"))
        array = np.lib.format.read_array(raw, allow_pickle=False)
        wanted = np.uint8 if field.name in _CODES else np.int64
        if array.ndim != 1 or array.dtype != wanted:
            raise FileFormatError(f"column {folder}/{field.name} is not a row of {wanted.__name__}")
        columns[field.name] = array
    if len({len(array) for array in columns.values()}) > 1:
        raise FileFormatError(f"the columns of {folder} differ in length")
    return kind(**columns)
