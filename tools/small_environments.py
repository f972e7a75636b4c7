"""Environments beside the main one, each made once in a run of the checks.

Keep the syntax to that of Python 3.8, like that of the scripts that import this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from environment import find_python, missing_chromium, packages_of, prepare

OTHER_PYTHONS = ("3.11", "3.13")


@cache
def beside(python: Path, group: str, *, fresh: bool) -> Path:
    """Prepare a small environment with one dependency group.

    Behind it on the path stands the main one with all its packages.
    """
    small = prepare(f".venv-{group}", group, interpreter=str(python), project=False, fresh=fresh)
    link = f"import site; site.addsitedir({packages_of(python)!r})\n"
    Path(packages_of(small), "main_environment.pth").write_text(link, encoding="utf-8")
    return small


def maker(group: str) -> Callable[[Path, bool], object]:
    """Return a function that prepares the environment of a group."""

    def make(python: Path, fresh: bool) -> object:  # noqa: FBT001
        return beside(python, group, fresh=fresh)

    return make


def oldest_jupyterlab(python: Path, fresh: bool) -> None:  # noqa: FBT001
    """Prepare the oldest JupyterLab, if a browser is there."""
    if missing_chromium() is None:
        beside(python, "browser-oldest", fresh=fresh)


def other_pythons(_python: Path, fresh: bool) -> None:  # noqa: FBT001
    """Prepare the environments of the other Pythons that are found here."""
    for version in other_versions():
        if interpreter := find_python(version):
            other_python(version, interpreter, fresh=fresh)


def other_versions() -> list[str]:
    """Return the versions of Python that are not this one's."""
    return [one for one in OTHER_PYTHONS if one != "{}.{}".format(*sys.version_info)]


@cache
def other_python(version: str, interpreter: str, *, fresh: bool) -> Path:
    """Prepare the environment of another Python, without torch."""
    return prepare(f".venv-{version}", "run", "test", interpreter=interpreter, fresh=fresh)
