"""`%nbmem free checkpoint['model'] x`: the notebook's own names, and what they lead to."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.core.holders import HolderKind
from nbmem.ipython.freeing.paths import follow, parse_paths, remove, root_of
from nbmem.ipython.freeing.target import Target
from nbmem.probes.holders import Cut, reached_from
from nbmem.probes.holders.objects import attributes_of

if TYPE_CHECKING:
    from nbmem.ipython.freeing.paths import Path
    from nbmem.probes.holders.places import Place

_RESULTS = ("Out", "_oh", "_", "__", "___")


def targets(shell: Any, text: str) -> list[Target]:
    """What the user named, each checked before anything is let go of.

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
    return [_target(shell, path) for path in paths]


def _target(shell: Any, path: Path) -> Target:
    namespace = shell.user_ns
    value = root_of(namespace, path)
    _refuse(shell, path, value)
    if not path.steps:

        def named(place: Place) -> bool:
            return place.kind is HolderKind.NAME and place.root == path.root

        return Target(
            what=path.text,
            cut=Cut(place=named),
            reached=reached_from(value, namespace),
            release=partial(_forget, shell, path),
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


def _forget(shell: Any, path: Path) -> list[str]:
    del shell.user_ns[path.root]
    return []


def _refuse(shell: Any, path: Path, value: Any) -> None:
    if path.root in _RESULTS or (path.root[:1] == "_" and path.root[1:].isdecimal()):
        raise UsageError(
            f"{path.text} is IPython's, which keeps each result under several names. "
            "`%nbmem free out` lets go of all of them."
        )
    if path.root in shell.user_ns_hidden or (path.root[:2] == path.root[-2:] == "__"):
        raise UsageError(f"{path.root} belongs to IPython, not to your notebook: it stays.")
    if issubclass(type(value), ModuleType):
        raise UsageError(f"{path.root} is an imported module: no memory would come of removing it.")
