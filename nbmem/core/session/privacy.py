"""Remove data that identifies the author from a recording.

Removed are paths, source text, and the names of the user, the host and other processes. Figures
remain exact, to the byte, and the names of variables, modules and functions remain. SECURITY.md
lists what is removed. Every format is written from a session, so this covers all of them.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from nbmem.core.session.events import Frame
from nbmem.core.session.session import DeviceTrace, Session, Source
from nbmem.core.session.source_files import FORMER, OURS

if TYPE_CHECKING:
    from nbmem.core.session.ranks import Rank

HIDDEN = "hidden"
"""Replaces a removed name."""
_KNOWN_ENDS = (
    (re.compile(r".*/((?:site|dist)-packages/.*)"), r"\1"),
    (re.compile(r".*(/lib(?:64)?/python\d(?:\.\d+)?t?/.*)"), r"python\1"),
    (re.compile(r".*/torchinductor_[^/]*/(?:.*/)?([^/]*)"), rf"cache/torchinductor_{HIDDEN}/\1"),
    (re.compile(r".*/ipykernel_\d+/(\d+\.py)"), r"cells/ipykernel_0/\1"),
    (re.compile(r".*/(ipython-input-[^/]*)"), r"cells/\1"),
    (
        re.compile(rf".*(/nbmem/(?:__main__\.py|(?:{'|'.join((*OURS, *FORMER))})/.*))"),
        r"site-packages\1",
    ),
    (re.compile(r".*/(bin|Scripts)/([^/.]+)"), r"python/\1/\2"),
)
"""Files that readers classify by the end of their path (`core.session.source_files`)."""
_PART = r"[^\s/\\'\"<>|:;,()\[\]{}]"
_PATH = re.compile(
    r"(?P<address>\b[a-z][a-z0-9+.-]*://\S+)"
    r"|(?<=')(?:[A-Za-z]:)?[\\/][^'\n]*[\\/][^'\n]*(?=')"
    rf"|(?<![\w.~])(?:[A-Za-z]:|~{_PART}*)?(?:[\\/]+{_PART}+){{2,}}[\\/]*"
)
"""A path with a folder in it, in quotes or not; `GiB/s` and `and/or` have no root. An address is
matched to be skipped."""
_HOMES = re.compile(r"[\\/](?:home|Users)[\\/]+([^\\/]+)[\\/]")
_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*://(?!(?:[\w-]+\.)*(?:github|pytorch|nvidia|python)\.(?:com|org)\b)"
    r"[^\s'\"]+"
)
"""A server's address; documentation pages are not removed."""
_NUMBERED = re.compile(r"\b(process|pid|ipykernel)([ _:=]+)\d++(?! (?:B|of)\b)", re.IGNORECASE)
_GENERIC_NAMES = frozenset(
    ("root", "user", "ubuntu", "jovyan", "localhost", "admin", "home", "nobody", "colab")
)
"""Names that identify no one, and that a sentence may contain for another reason."""
_SHORTEST_NAME = 3


def private_session(session: Session) -> Session:
    """Return a copy of a session without data that identifies the author.

    Names of the machine and of other people are also removed.

    Paths are relative: `site-packages/torch/...`, or for a file of the program its path below the
    recorded file's folder. There is no source text, user, host, PID or other process's name.
    Figures and the names of variables are unchanged.
    """
    files = _FileNames(session)
    texts = _TextCleaner(session, files)

    def stack(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return tuple(map(files.rename_frame, frames))

    source = session.source
    return replace(
        session,
        name=texts.clean_sentence(session.name),
        devices=tuple(_private_device(one, texts) for one in session.devices),
        spans=tuple(replace(one, name=texts.clean_sentence(one.name)) for one in session.spans),
        stacks=tuple(map(stack, session.stacks)),
        names=tuple(map(texts.clean_name, session.names)),
        notes=tuple(map(texts.clean_sentence, session.notes)),
        error=texts.clean_optional(session.error),
        refusals=tuple(
            replace(one, stack=stack(one.stack), thread=texts.clean_optional(one.thread))
            for one in session.refusals
        ),
        facts=texts.clean_data(_without_source_text(session.facts, files)),
        source=None if source is None else Source(files.rename(source.file)),
        rank=None if session.rank is None else _private_rank(session.rank),
    )


def _without_source_text(facts: Mapping[str, Any], files: _FileNames) -> Mapping[str, Any]:
    """Return facts with relative file names and without source text."""
    if "lines" not in facts:
        return facts
    frames = [
        [files.rename(file), line, function, ""]
        for file, line, function, _ in facts["lines"]["frames"]
    ]
    return {**facts, "lines": {**facts["lines"], "frames": frames}}


def _private_device(trace: DeviceTrace, texts: _TextCleaner) -> DeviceTrace:
    others = sorted(trace.other_processes.values(), reverse=True)
    return replace(
        trace,
        info=replace(trace.info, name=texts.clean_sentence(trace.info.name)),
        settings=texts.clean_data(trace.settings),
        other_processes={f"another process ({n})": size for n, size in enumerate(others, 1)},
    )


def _private_rank(rank: Rank) -> Rank:
    return replace(rank, host=HIDDEN, pid=0, run=None, card=None)


class _FileNames:
    """Relative names of the files in stacks; two files have two names.

    Attributes:
        folders: The program's folders, to which its files' names are relative.
    """

    def __init__(self, session: Session) -> None:
        folders = [Path.cwd().as_posix()]
        if session.source is not None:
            folders.insert(0, _with_slashes(session.source.file).rpartition("/")[0])
        homes = [*(f"{home}/" for home in _homes()), *(f"{one}/" for one in ("/home", "/Users"))]
        # Below a folder that contains homes, a home would be part of a relative path.
        self.folders = [
            folder
            for folder in folders
            if _is_absolute(folder)
            and len(folder) > 1
            and not any(home.startswith(f"{folder}/") for home in homes)
        ]
        self._frames: dict[Frame, Frame] = {}
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()

    def rename_frame(self, frame: Frame) -> Frame:
        """Rename the file of a frame; equal frames become one object."""
        if frame not in self._frames:
            self._frames[frame] = Frame(self.rename(frame.file), frame.line, frame.function)
        return self._frames[frame]

    def rename(self, file: str) -> str:
        """Return a file's relative name."""
        if file not in self._known:
            self._known[file] = self._new_name(file)
        return self._known[file]

    def _new_name(self, file: str) -> str:
        path = _with_slashes(file)
        if (kept := _known_end(path)) is not None or file.startswith("<"):
            return kept or file
        root = next((f"{one}/" for one in self.folders if path.startswith(f"{one}/")), None)
        inside = root is not None or not (_is_absolute(path) or path.startswith(("~", "..")))
        short = path.removeprefix(root or "") if inside else path.rpartition("/")[2]
        name, number = short, 1
        while name in self._taken:
            number += 1
            name = f"{number}/{short}"
        self._taken.add(name)
        return name


class _TextCleaner:
    """A cleaner that removes paths from texts and names from sentences.

    The names are those of people and machines.
    """

    def __init__(self, session: Session, files: _FileNames) -> None:
        of_stacks = {frame.file for stack in session.stacks for frame in stack}
        of_stacks |= {frame[0] for frame in session.facts.get("lines", {}).get("frames", ())}
        own = {*_own_names(), *(user for file in of_stacks for user in _HOMES.findall(file))}
        if session.rank is not None:
            own |= {session.rank.host, session.rank.host.partition(".")[0]}
        self._folders = _pattern_of_folders([*_homes(), *files.folders])
        telling = {
            word
            for word in own
            if len(word) >= _SHORTEST_NAME and word.lower() not in _GENERIC_NAMES
        }
        longest = sorted(telling, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest)) or r"(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE)
        # A key of a dictionary may begin with a slash, so a name's path must begin with a known
        # folder.
        firsts = {
            "home",
            "Users",
            "root",
            "tmp",
            "mnt",
            *map(_outermost_folder, (*_homes(), str(Path.cwd()))),
        }
        self._firsts = {HIDDEN, *firsts, *map(_outermost_folder, of_stacks)} - {""}

    def clean_sentence(self, text: str) -> str:
        """Clean a note, an error or a title of any content."""
        text = _ADDRESS.sub(HIDDEN, text.replace("file://", ""))
        text = _PATH.sub(
            lambda found: found["address"] or _shorten(found[0]), self._mark_folders(text)
        )
        return self._words.sub(HIDDEN, _NUMBERED.sub(r"\1\g<2>0", text))

    def clean_name(self, text: str) -> str:
        """Remove the folders of a path from a variable's name."""
        return _PATH.sub(
            lambda found: (
                _shorten(found[0]) if _outermost_folder(found[0]) in self._firsts else found[0]
            ),
            self._mark_folders(text),
        )

    def _mark_folders(self, text: str) -> str:
        """Replace the home and the program's folders by one folder's name."""
        return self._folders.sub(f"/{HIDDEN}", text)

    def clean_optional(self, text: str | None) -> str | None:
        """Clean a sentence, if there is one."""
        return None if text is None else self.clean_sentence(text)

    def clean_data(self, value: Any) -> Any:
        """Clean data as JSON has it, each text of it as a name."""
        if isinstance(value, str):
            return self.clean_name(value)
        if isinstance(value, (list, tuple)):
            return [self.clean_data(one) for one in value]
        if hasattr(value, "items"):
            found: Mapping[Any, Any] = value
            return {self.clean_data(key): self.clean_data(one) for key, one in found.items()}
        return value


def _known_end(path: str) -> str | None:
    """Return the end of a path that identifies its package, or None."""
    found = ((pattern.fullmatch(path), end) for pattern, end in _KNOWN_ENDS)
    return next((match.expand(end) for match, end in found if match is not None), None)


def _shorten(path: str) -> str:
    """Return the part of a path that a sentence may contain."""
    slashed = _with_slashes(path).rstrip("/")
    home = _HOMES.match(f"{slashed.partition(':')[2] or slashed}/")
    if home is not None and slashed.endswith(f"/{home[1]}"):
        return HIDDEN
    return _known_end(slashed) or slashed.rpartition("/")[2]


def _homes() -> list[str]:
    with suppress(RuntimeError):
        home = Path.home()
        return [path for path in {home.as_posix(), home.resolve().as_posix()} if len(path) > 1]
    return []


def _own_names() -> Iterator[str]:
    """Yield the names of the user and of the machine."""
    for home in _homes():
        yield PurePosixPath(home).name
    with suppress(Exception):  # a user without an entry
        yield getpass.getuser()
    host = socket.gethostname()
    yield from {host, host.partition(".")[0]}


def _pattern_of_folders(paths: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern of folders, the longest first, with any slashes."""
    longest = sorted(set(paths), key=len, reverse=True)
    each = (r"[\\/]+".join(map(re.escape, path.split("/"))) for path in longest)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(each) or '(?!)'})(?![\w.-])")


def _with_slashes(path: str) -> str:
    """Write a path with single forward slashes."""
    return re.sub(r"[\\/]+", "/", path)


def _outermost_folder(path: str) -> str:
    """Return the outermost folder of an absolute path, or an empty text."""
    slashed = _with_slashes(path)
    return slashed.strip("/").partition("/")[0] if _is_absolute(slashed) else ""


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or path[1:3] == ":/"
