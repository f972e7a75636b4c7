"""Take out of a recording what tells of its author: paths, source, user, host, other processes.

What is measured stays, to the byte, and so do the names of variables, modules and functions.
SECURITY.md lists what is taken out. Every format is written from a session, so nothing else does.
"""

from __future__ import annotations

import getpass
import re
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from nbmem.core.events import Frame
from nbmem.core.session import Source
from nbmem.core.sources import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nbmem.core.session import DeviceTrace, Session
    from nbmem.core.world import Rank

HIDDEN = "hidden"
"""What stands for a name that is taken out."""
_KEPT = (
    (re.compile(r".*/((?:site|dist)-packages/.*)"), r"\1"),
    (re.compile(r".*(/lib(?:64)?/python\d(?:\.\d+)?t?/.*)"), r"python\1"),
    (re.compile(r".*/torchinductor_[^/]*/(?:.*/)?([^/]*)"), rf"cache/torchinductor_{HIDDEN}/\1"),
    (re.compile(r".*/ipykernel_\d+/(\d+\.py)"), r"cells/ipykernel_0/\1"),
    (re.compile(r".*/(ipython-input-[^/]*)"), r"cells/\1"),
    (re.compile(rf".*(/nbmem/(?:__main__\.py|(?:{'|'.join(OURS)})/.*))"), r"site-packages\1"),
    (re.compile(r".*/(bin|Scripts)/([^/.]+)"), r"python/\1/\2"),
)
"""Files of which readers know whose they are by the end of their path (`core.sources`)."""
_PART = r"[^\s/\\'\"<>|:;,()\[\]{}]"
_PATH = re.compile(
    r"(?P<address>\b[a-z][a-z0-9+.-]*://\S+)"
    r"|(?<=')(?:[A-Za-z]:)?[\\/][^'\n]*[\\/][^'\n]*(?=')"
    rf"|(?<![\w.~])(?:[A-Za-z]:|~{_PART}*)?(?:[\\/]+{_PART}+){{2,}}[\\/]*"
)
"""A path with a folder in it, in quotes or not; `GiB/s` and `and/or` have no root. An address is
found to be passed over."""
_HOMES = re.compile(r"[\\/](?:home|Users)[\\/]+([^\\/]+)[\\/]")
_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*://(?!(?:[\w-]+\.)*(?:github|pytorch|nvidia|python)\.(?:com|org)\b)"
    r"[^\s'\"]+"
)
"""A server's address; pages of documentation stay."""
_NUMBERED = re.compile(r"\b(process|pid|ipykernel)([ _:=]+)\d++(?! (?:B|of)\b)", re.IGNORECASE)
_NOBODYS = {"root", "user", "ubuntu", "jovyan", "localhost", "admin", "home", "nobody", "colab"}
"""Names that tell nothing, and that a sentence may have for another reason."""
_SHORTEST = 3


def private_session(session: Session) -> Session:
    """Take out of a recording what tells of its author, of the machine and of other people.

    Paths are relative (`site-packages/torch/...`; a file of the program by its place beneath the
    recorded one's folder). There is no source text, no user, no host, no PID and no other process's
    name. Figures and the names of variables stay as they are.
    """
    files = _Files(session)
    texts = _Texts(session, files)

    def stack(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return tuple(map(files.frame, frames))

    source = session.source
    return replace(
        session,
        name=texts.sentence(session.name),
        devices=tuple(_device(one, texts) for one in session.devices),
        spans=tuple(replace(one, name=texts.sentence(one.name)) for one in session.spans),
        stacks=tuple(map(stack, session.stacks)),
        names=tuple(map(texts.name, session.names)),
        notes=tuple(map(texts.sentence, session.notes)),
        error=texts.maybe(session.error),
        refusals=tuple(
            replace(one, stack=stack(one.stack), thread=texts.maybe(one.thread))
            for one in session.refusals
        ),
        facts=texts.plain(session.facts),
        source=None if source is None else Source(files.relative(source.file)),
        rank=None if session.rank is None else _rank(session.rank),
    )


def _device(trace: DeviceTrace, texts: _Texts) -> DeviceTrace:
    others = sorted(trace.other_processes.values(), reverse=True)
    return replace(
        trace,
        info=replace(trace.info, name=texts.sentence(trace.info.name)),
        settings=texts.plain(trace.settings),
        other_processes={f"another process ({n})": size for n, size in enumerate(others, 1)},
    )


def _rank(rank: Rank) -> Rank:
    return replace(rank, host=HIDDEN, pid=0, run=None, card=None)


class _Files:
    """The files of stacks by relative names; two files have two names.

    Args:
        session: Whose stacks they are in.

    Attributes:
        folders: The program's, beneath which its files are named.
    """

    def __init__(self, session: Session) -> None:
        folders = [Path.cwd().as_posix()]
        if session.source is not None:
            folders.insert(0, _slashed(session.source.file).rpartition("/")[0])
        homes = [*(f"{home}/" for home in _homes()), *(f"{one}/" for one in ("/home", "/Users"))]
        # Beneath a folder that has homes in it, a home would be part of a relative path.
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

    def frame(self, frame: Frame) -> Frame:
        """A frame of the file's new name; of equal ones it is one object."""
        if frame not in self._frames:
            self._frames[frame] = Frame(self.relative(frame.file), frame.line, frame.function)
        return self._frames[frame]

    def relative(self, file: str) -> str:
        """A file's new name."""
        if file not in self._known:
            self._known[file] = self._named(file)
        return self._known[file]

    def _named(self, file: str) -> str:
        path = _slashed(file)
        if (kept := _kept(path)) is not None or file.startswith("<"):
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


class _Texts:
    """Texts without paths and, where they are sentences, without names of people and machines."""

    def __init__(self, session: Session, files: _Files) -> None:
        of_stacks = {frame.file for stack in session.stacks for frame in stack}
        own = {*_own_names(), *(user for file in of_stacks for user in _HOMES.findall(file))}
        if session.rank is not None:
            own |= {session.rank.host, session.rank.host.partition(".")[0]}
        self._folders = _folders([*_homes(), *files.folders])
        telling = {word for word in own if len(word) >= _SHORTEST and word.lower() not in _NOBODYS}
        longest = sorted(telling, key=len, reverse=True)
        said = "|".join(map(re.escape, longest)) or r"(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{said})(?![A-Za-z0-9])", re.IGNORECASE)
        # A key of a dictionary may begin with a slash; a name's path is one of a folder that is.
        firsts = {"home", "Users", "root", "tmp", "mnt", *map(_first, (*_homes(), str(Path.cwd())))}
        self._firsts = {HIDDEN, *firsts, *map(_first, of_stacks)} - {""}

    def sentence(self, text: str) -> str:
        """A note, an error, a title: whatever somebody may have written there."""
        text = _ADDRESS.sub(HIDDEN, text.replace("file://", ""))
        text = _PATH.sub(lambda found: found["address"] or _end_of(found[0]), self._marked(text))
        return self._words.sub(HIDDEN, _NUMBERED.sub(r"\1\g<2>0", text))

    def name(self, text: str) -> str:
        """A name of a variable, as it is but for a path in it."""
        return _PATH.sub(
            lambda found: _end_of(found[0]) if _first(found[0]) in self._firsts else found[0],
            self._marked(text),
        )

    def _marked(self, text: str) -> str:
        """A text in which the home and the program's folders, blanks in them or not, are a word."""
        return self._folders.sub(f"/{HIDDEN}", text)

    def maybe(self, text: str | None) -> str | None:
        """A sentence, if there is one."""
        return None if text is None else self.sentence(text)

    def plain(self, value: Any) -> Any:
        """Data as JSON has it, of whose texts each is a name."""
        if isinstance(value, str):
            return self.name(value)
        if isinstance(value, (list, tuple)):
            return [self.plain(one) for one in value]
        if hasattr(value, "items"):
            found: Mapping[Any, Any] = value
            return {self.plain(key): self.plain(one) for key, one in found.items()}
        return value


def _kept(path: str) -> str | None:
    """The end of a path that says whose file it is; None of a program's own file."""
    found = ((pattern.fullmatch(path), end) for pattern, end in _KEPT)
    return next((match.expand(end) for match, end in found if match is not None), None)


def _end_of(path: str) -> str:
    """What a sentence may say of a path."""
    slashed = _slashed(path).rstrip("/")
    home = _HOMES.match(f"{slashed.partition(':')[2] or slashed}/")
    if home is not None and slashed.endswith(f"/{home[1]}"):
        return HIDDEN
    return _kept(slashed) or slashed.rpartition("/")[2]


def _homes() -> list[str]:
    with suppress(RuntimeError):
        home = Path.home()
        return [path for path in {home.as_posix(), home.resolve().as_posix()} if len(path) > 1]
    return []


def _own_names() -> Iterator[str]:
    """What the user and the machine are called."""
    for home in _homes():
        yield PurePosixPath(home).name
    with suppress(Exception):  # a user without an entry
        yield getpass.getuser()
    host = socket.gethostname()
    yield from {host, host.partition(".")[0]}


def _folders(paths: Iterable[str]) -> re.Pattern[str]:
    """What finds folders in a text, the longest first, with whatever slashes."""
    longest = sorted(set(paths), key=len, reverse=True)
    each = (r"[\\/]+".join(map(re.escape, path.split("/"))) for path in longest)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(each) or '(?!)'})(?![\w.-])")


def _slashed(path: str) -> str:
    """A path with one kind of slash, one at a time."""
    return re.sub(r"[\\/]+", "/", path)


def _first(path: str) -> str:
    """The outermost folder of an absolute path: `home`, `C:`; empty for another."""
    slashed = _slashed(path)
    return slashed.strip("/").partition("/")[0] if _is_absolute(slashed) else ""


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or path[1:3] == ":/"
