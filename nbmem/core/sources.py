"""The owner of a source file: the user, nbmem, an installed package or Python's library.

Told by the path alone, for the stacks of a recording come from other machines, and packages come
from more folders than this interpreter's own: a user's, the system's, an environment behind this
one (`--system-site-packages`, a `.pth` file).
"""

from __future__ import annotations

import re
import sysconfig
from functools import lru_cache

_PACKAGES = re.compile(r"(?:^|[\\/])(?:site|dist)-packages[\\/]")
_ANY_STDLIB = re.compile(r"[\\/]lib(?:64)?[\\/]python\d(?:\.\d+)?t?[\\/]|^<frozen ")
_GENERATED = re.compile(r"[\\/]torchinductor_[^\\/]*[\\/]|^<eval_with_key>")
"""What torch.compile and torch.fx write: the line above it is the user's."""
OURS = ("cli", "estimates", "freeing", "ipython", "live", "probes", "record", "virtual")
"""Folders of nbmem whose code can stand between a user's line and torch; not nbmem's as a whole,
for a program may lie in a folder of that name. tests/house holds them to the import contracts."""
_OURS = re.compile(rf"[\\/]nbmem[\\/](?:{'|'.join(OURS)})[\\/]")
_THIS_STDLIB = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


@lru_cache(maxsize=4096)
def is_packages(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return bool(_PACKAGES.search(file))


@lru_cache(maxsize=4096)
def is_stdlib(file: str) -> bool:
    """Whether a file is of Python's own library, of this Python or of another."""
    of_one = file.startswith(_THIS_STDLIB) or bool(_ANY_STDLIB.search(file))
    return of_one and not is_packages(file)


def is_ours(file: str) -> bool:
    """Whether a file is of nbmem's that can stand between a user's line and torch."""
    return bool(_OURS.search(file))


def is_library(file: str) -> bool:
    """Whether a file is not the user's: Python's own, an installed package's or torch's writing."""
    return is_packages(file) or is_stdlib(file) or bool(_GENERATED.search(file))
