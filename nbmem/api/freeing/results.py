"""`free out`: free everything that IPython keeps of cells' results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nbmem.api.freeing.target import Target
from nbmem.core.errors import UsageError
from nbmem.core.session.holders import HolderKind

if TYPE_CHECKING:
    from nbmem.capture.interpreter.roots import Place

_NAMES = ("_", "__", "___")


def target(shell: Any | None, namespace: dict[str, Any]) -> Target:
    """Return the target of IPython's results: Out, `_`, `_12`, copies.

    These are Out, `_` to `___`, `_12` and the display hook's copies of them.

    Raises:
        UsageError: There is no IPython here.
    """
    if shell is None:
        raise UsageError("Outside of IPython no results are kept: there is no `out` to free.")
    return Target.of_places("Out", _is_result, namespace, partial(_release, shell))


def _is_result(place: Place) -> bool:
    return place.kind in (HolderKind.OUT, HolderKind.UNDERSCORE)


def _release(shell: Any) -> list[str]:
    """Release the results as `%reset out` does, without a collection.

    `%reset out` is IPython's own.
    """
    names, hidden = shell.user_ns, shell.user_ns_hidden
    results = names.get("Out")
    if issubclass(type(results), dict):
        for number in list(dict.keys(results)):
            alias = f"_{number}"
            if alias in names and names[alias] is results[number]:
                del names[alias]
            hidden.pop(alias, None)
        dict.clear(results)
    for name in _NAMES:
        for store in (names, hidden):  # both, or IPython treats `_` as the user's own from here on
            if name in store:
                store[name] = ""
        setattr(shell.displayhook, name, "")
    last = getattr(shell, "last_execution_result", None)
    if last is not None:
        last.result = None
    return []
