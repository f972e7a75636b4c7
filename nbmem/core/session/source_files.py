"""The owner of a source file: the user, nbmem, an installed package or Python's library.

Told by the path alone, for the stacks of a recording come from other machines, and packages come
from more folders than this interpreter's own: a user's, the system's, an environment behind this
one (`--system-site-packages`, a `.pth` file).
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmem.core.session.events import Frame, Stack

_LAUNCHER = re.compile(r"[\\/](?:bin|Scripts)[\\/][^\\/.]+$")
"""What an installer writes to start a program: `bin/pytest`."""
TOP_LEVEL = ("<module>", "<cell line: ")
"""What code outside of any function is called; the second by IPython 7 and 8."""
_PACKAGES = re.compile(r"(?:^|[\\/])(?:site|dist)-packages[\\/]")
_ANY_STDLIB = re.compile(
    r"[\\/]lib(?:64)?[\\/]python\d(?:\.\d+)?t?[\\/]|[\\/]python\d+\.zip[\\/]|^<frozen "
)
_WINDOWS_STDLIB = re.compile(r"\\Lib\\(\w+)(?:\.py$|\\)", re.IGNORECASE)
"""On Windows the folder has no version in its name: whose it is, the module's name says."""
_GENERATED = re.compile(r"[\\/]torchinductor_[^\\/]*[\\/]|^<eval_with_key>")
"""What torch.compile and torch.fx write: the line above it is the user's."""
OURS = ("api", "capture", "estimates", "frontends", "virtual")
"""Folders of nbmem whose code can stand between a user's line and torch; not nbmem's as a whole,
for a program may lie in a folder of that name. tests/house holds them to the import contracts."""
FORMER = ("cli", "freeing", "ipython", "live", "probes", "record")
"""Their names before 0.1.0, which recordings of that time have in their stacks."""
_FOLDERS = "|".join((*OURS, *FORMER))
_OURS = re.compile(rf"[\\/]nbmem[\\/](?:__main__\.py$|(?:{_FOLDERS})[\\/])")
_THIS_STDLIB = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def with_slashes(file: str) -> str:
    """Return a path as it is written everywhere but on Windows."""
    return file.replace("\\", "/")


@lru_cache(maxsize=4096)
def is_packages(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return bool(_PACKAGES.search(file))


@lru_cache(maxsize=4096)
def is_stdlib(file: str) -> bool:
    """Whether a file is of Python's own library, of this Python or of another."""
    of_one = file.startswith(_THIS_STDLIB) or bool(_ANY_STDLIB.search(file))
    windows = _WINDOWS_STDLIB.search(file)
    of_one = of_one or (windows is not None and windows[1] in sys.stdlib_module_names)
    return of_one and not is_packages(file)


def is_library(file: str) -> bool:
    """Whether a file is not the user's: Python's own, an installed package's or torch's writing."""
    return is_packages(file) or is_stdlib(file) or bool(_GENERATED.search(file))


@lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Whether a file is of nbmem's that can stand between a user's line and torch."""
    return bool(_OURS.search(file))


def is_users(frame: Frame) -> bool:
    """Whether a frame is in the user's own code."""
    return not is_library(frame.file) and not is_ours(frame.file)


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    return not is_library(file) and not is_ours(file) and not _LAUNCHER.search(file)


def recorded_file(stacks: Iterable[Stack]) -> str | None:
    """The cell or script that was recorded: what most stacks run outside of any function.

    Returns:
        Its file, as the frames name it; None where no stack has a line of the user's.
    """
    own = [[frame for frame in stack if _is_own(frame.file)] for stack in stacks]
    # Of a cell inside a cell the inner one. A test or a thread has only functions.
    programs = (next((f for f in s if f.function.startswith(TOP_LEVEL)), None) for s in own)
    found = [frame for frame in programs if frame] or [frames[-1] for frames in own if frames]
    files = Counter(frame.file for frame in found)
    return files.most_common(1)[0][0] if files else None
