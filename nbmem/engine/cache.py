"""Keep compiled stand-ins in the user's cache, one for each torch.

Their key is a hash of the sources, the table of cards, and the path, names and sizes of the
libraries that they stand below.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from nbmem.core.errors import NotWrittenError
from nbmem.core.runtime.clock import CLOCK
from nbmem.engine import build

MODULES = ("build.py", "headers.py")
PRIVATE = 0o700
"""Only the user may write what is loaded into every process of theirs."""
LENGTH = 16
"""Digits of the key in a folder's name."""


def root() -> Path:
    """Return the folder of all of nbmem's compiled stand-ins.

    XDG_CACHE_HOME says where, as for other programs.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "nbmem" / "engine"


@cache
def sources() -> bytes:
    """Return a hash of what the stand-in is made from."""
    own = [build.SOURCES.parent / name for name in MODULES]
    files = [*own, *(path for path in sorted(build.SOURCES.rglob("*")) if path.is_file())]
    content = b"\0".join([*(path.read_bytes() for path in files), build.cards().encode()])
    return hashlib.sha256(content).digest()


def key(site: Path) -> str:
    """Return the key of the stand-in for the torch in a folder of packages."""
    found = hashlib.sha256(sources() + str(site).encode())
    for path in build.libraries(site):
        found.update(f"{path.relative_to(site)} {path.stat().st_size}\n".encode())
    return found.hexdigest()[:LENGTH]


def release(site: Path) -> str:
    """Return the name and version of torch's distribution there."""
    found = next(iter(site.glob("torch-*.dist-info")), Path("torch"))
    return found.name.removesuffix(".dist-info")


def folder(site: Path) -> Path:
    """Return where the stand-in for this torch lies, or will."""
    return root() / f"{release(site)}-{key(site)}"


def is_built(site: Path) -> bool:
    """Return whether the stand-in for this torch is compiled."""
    return (folder(site) / build.PRELOAD).exists()


def print_progress(line: str) -> None:
    """Print a line on the compilation to stderr."""
    if sys.stderr is not None:
        sys.stderr.write(f"nbmem: {line}\n")
        sys.stderr.flush()


def ensure(
    site: Path,
    architectures: tuple[int, ...],
    *,
    tell: Callable[[str], None] = print_progress,
) -> Path:
    """Return the folder of the stand-in; compile what is missing of it.

    Two processes may compile at the same time: the first one's result is taken.

    Args:
        site: The folder of packages that torch is in.
        architectures: Whose tables of kernels are needed.
        tell: Called with lines on the progress.

    Raises:
        BuildError: It cannot be compiled.
        NotWrittenError: The cache cannot be written.
    """
    out = folder(site)
    try:
        if not is_built(site):
            _compile(site, out, tell)
        for one in architectures:
            if not (out / build.table_of(one)).exists():
                build.kernels(site, out, one)
    except OSError as err:
        raise NotWrittenError(
            f"Cannot compile the engine torch into {out} ({err.strerror}). Make room or rights "
            "there, or name another folder in XDG_CACHE_HOME."
        ) from err
    return out


def _compile(site: Path, out: Path, tell: Callable[[str], None]) -> None:
    begun = CLOCK.perf_counter()
    tell(
        f"compiling the engine torch for {release(site)}, once, into {out} (20 s of the processor)"
    )
    out.parent.mkdir(PRIVATE, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="compiling-") as work:
        made = Path(work, "made")
        made.mkdir(PRIVATE)
        build.build(site, made, lambda _line: None)
        try:
            made.rename(out)
        except OSError:
            if not is_built(site):
                raise
    tell(f"compiled in {CLOCK.perf_counter() - begun:.0f} s")
