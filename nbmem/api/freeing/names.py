"""`free checkpoint['model'] x`: free names of a notebook or program."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.api.freeing.paths import Path, follow, parse_paths, remove, root_of
from nbmem.api.freeing.target import Target
from nbmem.capture.heap import Cut, reached_from
from nbmem.capture.interpreter.object_members import attributes_of
from nbmem.core.errors import UsageError
from nbmem.core.session.holders import HolderKind

if TYPE_CHECKING:
    from nbmem.capture.interpreter.roots import Place

_RESULTS = ("Out", "_oh", "_", "__", "___")


def targets(shell: Any | None, names: dict[str, Any], text: str) -> list[Target]:
    """Return the targets that the user named.

    Each is checked before anything is released.

    Args:
        shell: IPython's shell, if there is one: its own references are not the user's.
        names: The notebook's or the program's.
        text: Paths that begin with one of the names.

    Raises:
        UsageError: One of them cannot be freed.
    """
    paths = parse_paths(text)
    for i, path in enumerate(paths):
        for other in paths[:i] + paths[i + 1 :]:
            if path.root == other.root and path.steps == other.steps[: len(path.steps)]:
                raise UsageError(
                    f"{path.text} and {other.text} are named together: one holds the other."
                )
    return [_target(shell, names, path) for path in paths]


def _target(shell: Any | None, namespace: dict[str, Any], path: Path) -> Target:
    value = root_of(namespace, path)
    _refuse(shell, path, value)
    if not path.steps:

        def named(place: Place) -> bool:
            return place.kind is HolderKind.NAME and place.root == path.root

        return Target(
            what=path.text,
            cut=Cut(place=named),
            reached=reached_from(value, namespace),
            release=partial(_forget, namespace, path),
        )
    holder = follow(value, path, path.steps[:-1])
    inner = follow(holder, path, path.steps[-1:])
    sources = [holder, attributes_of(holder)]
    edges = frozenset((id(source), id(inner)) for source in sources if source is not None)
    return Target(
        what=path.text,
        cut=Cut(edges=edges),
        reached=reached_from(inner, namespace),
        release=partial(remove, holder, path),
    )


def _forget(namespace: dict[str, Any], path: Path) -> list[str]:
    del namespace[path.root]
    return []


def _refuse(shell: Any | None, path: Path, value: Any) -> None:
    own = path.root[:2] == path.root[-2:] == "__"
    if shell is not None:
        _refuse_ipythons(shell, path, own=own)
    elif own:
        raise UsageError(f"{path.root} belongs to Python, not to your program: it stays.")
    if issubclass(type(value), ModuleType):
        raise UsageError(f"{path.root} is an imported module: no memory would come of removing it.")


def _refuse_ipythons(shell: Any, path: Path, *, own: bool) -> None:
    if path.root in _RESULTS or (path.root[:1] == "_" and path.root[1:].isdecimal()):
        raise UsageError(
            f"{path.text} is IPython's, which keeps each result under several names. "
            "`%nbmem free out` lets go of all of them."
        )
    if own or path.root in shell.user_ns_hidden:
        raise UsageError(f"{path.root} belongs to IPython, not to your notebook: it stays.")
