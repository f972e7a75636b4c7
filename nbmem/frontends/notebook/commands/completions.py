"""List what Tab completes: names, cells, cards, tips and files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.core.arguments import CommandOption
    from nbmem.frontends.notebook.commands.base import CompletionRequest, Notebook

MAX_FILES = 200
_RECORDINGS = (".nbmem", ".pickle", ".pkl")
_NUMBER = re.compile(r"^[ \t]*([A-Za-z_]\w*)[ \t]*=[ \t]*\d+[ \t]*(?:#.*)?$", re.MULTILINE)
_EMPTY = {type(None), bool, int, float, complex, str, bytes}
"""Types that hold no tensor."""
_CODE = (BuiltinFunctionType, FunctionType, ModuleType, type)


def cards(_asked: CompletionRequest | None = None) -> Iterable[str]:
    """Return the virtual cards and the other words of `%nbmem gpu`."""
    return [*_cards(), "auto", "off"]


def _cards() -> list[str]:
    from nbmem.virtual.cards import CARDS

    return [card.key.replace(" ", "-") for card in CARDS]  # a blank would end the word


def language_models(_asked: CompletionRequest | None = None) -> Iterable[str]:
    """Return the language models that are known without a download."""
    from nbmem.estimates.language_models.models import published

    return list(published())


def formats(_asked: CompletionRequest | None = None) -> Iterable[str]:
    """Return the names of the export formats."""
    from nbmem.views.exports import FORMATS

    return [known.name for known in FORMATS]


def rules(_asked: CompletionRequest, *, muted: bool | None = None) -> Iterable[str]:
    """Return the names of the tips.

    With `muted`, only muted rules (True) or only others (False).
    """
    from nbmem.report.tips import mutes
    from nbmem.report.tips.rules import RULES

    silent = mutes.muted()
    return [rule.name for rule in RULES if muted is None or muted == (rule.name in silent)]


def kept_traces(asked: CompletionRequest) -> Iterable[str]:
    """Return the traced cells that are kept, by number or by name."""
    return [_quoted(name) for name in asked.notebook.tracer.kept.names()]


def freeable(asked: CompletionRequest) -> Iterable[str]:
    """Return what `%nbmem free` takes: its own words, and variable names.

    Only variables whose value may hold a tensor are offered.
    """
    words = () if asked.before else ("cache", "frameworks", "traceback", "out")
    return [*words, *(name for name, value in _names(asked.notebook) if _may_hold(value))]


def modules(asked: CompletionRequest) -> Iterable[str]:
    """Return the names of the notebook's models."""
    if "torch" not in sys.modules:
        return []
    from nbmem.capture.tensors.tensors import modules_in

    return [name for name, _ in modules_in(asked.notebook.shell.user_ns)]


def variables(asked: CompletionRequest) -> Iterable[str]:
    """Return integer variables: the cell's below, then the notebook's."""
    of_notebook = (name for name, value in _names(asked.notebook) if type(value) is int)
    return dict.fromkeys([*_NUMBER.findall(asked.below), *of_notebook])


def recordings(asked: CompletionRequest) -> Iterable[str]:
    """Return folders, and files that nbmem can open."""
    return [name for name in files(asked) if name.rstrip('"').endswith(("/", *_RECORDINGS))]


def files(asked: CompletionRequest) -> Iterable[str]:
    """Return the files and folders whose names begin with the word."""
    folder, slash, begin = asked.word.lstrip("\"'").rpartition("/")
    try:
        inside = sorted(Path(f"{folder}{slash}" or ".").expanduser().iterdir())
        found = [(path.name, path.is_dir()) for path in inside if path.name.startswith(begin)]
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return []
    shown = [one for one in found if begin.startswith(".") or not one[0].startswith(".")]
    return [
        _quoted(f"{folder}{slash}{name}{'/' if is_folder else ''}")
        for name, is_folder in shown[:MAX_FILES]
    ]


def values(option: CommandOption, asked: CompletionRequest) -> Iterable[str]:
    """Return what may follow an option."""
    offer = _VALUES.get((option.flag, option.value))
    return () if offer is None else offer(asked)


def _ordinals(_asked: CompletionRequest) -> Iterable[str]:
    from nbmem.api import device_selection

    return [str(card.ordinal) for card in device_selection.cards_here()]


def _columns(_asked: CompletionRequest) -> Iterable[str]:
    from nbmem.views.layers import COLUMNS

    return ["name", *COLUMNS]


def _inputs(asked: CompletionRequest) -> Iterable[str]:
    return [
        name for name, value in _names(asked.notebook) if hasattr(type(value), "untyped_storage")
    ]


_VALUES: Mapping[tuple[str, str | None], Callable[[CompletionRequest], Iterable[str]]] = {
    ("--gpu", "NAME"): lambda _: _cards(),
    ("--device", "N"): _ordinals,
    ("--save", "FILE"): files,
    ("--json", "FILE"): files,
    ("--html", "FILE"): files,
    ("--batch", "NAME"): variables,
    ("--input", "SHAPE"): _inputs,
    ("--sort", "COLUMN"): _columns,
}


def _names(notebook: Notebook) -> Iterator[tuple[str, Any]]:
    """Yield the user's variables with their values, without IPython's own."""
    shell = notebook.shell
    hidden = getattr(shell, "user_ns_hidden", {})
    for name, value in list(shell.user_ns.items()):
        if type(name) is str and not name.startswith("_") and name not in hidden:
            yield name, value


def _may_hold(value: object) -> bool:
    kind = type(value)
    return kind not in _EMPTY and not issubclass(kind, _CODE)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name
