"""Parse and follow paths such as `checkpoint['model'].x[3]`.

A path is read, never evaluated. Properties are not followed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nbmem.capture.interpreter.object_members import attributes_of, mro_of
from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest

_TOKEN = re.compile(r"""(?:[^\s,\[\]"']|"[^"]*"|'[^']*'|\[(?:[^\]"']|"[^"]*"|'[^']*')*\])+""")
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_KEYS = (str, int, bool, float, bytes, type(None))
_PARTS_OF_MODULE = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a path.

    Attributes:
        kind: An attribute, or an entry in brackets.
        key: Its name, key or index.
    """

    kind: Literal["attribute", "entry"]
    key: Any


@dataclass(frozen=True, slots=True)
class Path:
    """A path as the user typed it.

    Attributes:
        text: Its text.
        root: The name at its start.
        steps: The rest.
    """

    text: str
    root: str
    steps: tuple[PathStep, ...]


def parse_paths(text: str) -> list[Path]:
    """Read several paths, separated by blanks or commas.

    Raises:
        UsageError: A text is not a path of names, attributes and plain keys.
    """
    rest = _TOKEN.sub("", text).strip(" ,\t")
    if rest:
        raise UsageError(f"{text!r} has a bracket or a quote too many ({rest!r}).")
    return [_parse(token) for token in _TOKEN.findall(text)]


def _parse(text: str) -> Path:
    refused = UsageError(
        f"{text!r} is not a name that can be freed. Write a variable, an attribute or an entry: "
        "`x`, `trainer.cache`, `checkpoint['model']`, `history[3]`. Nothing is computed."
    )
    try:
        node: ast.expr = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise refused from None
    steps: list[PathStep] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(PathStep("attribute", node.attr))
        elif isinstance(node, ast.Subscript):
            try:
                key = ast.literal_eval(node.slice)
            except (ValueError, TypeError):
                raise refused from None
            if type(key) not in _KEYS and not _is_plain_tuple(key):
                raise refused
            steps.append(PathStep("entry", key))
        else:
            raise refused
        node = node.value
    return Path(text, node.id, tuple(reversed(steps)))


def _is_plain_tuple(key: object) -> bool:
    return type(key) is tuple and all(type(part) in _KEYS for part in key)


def root_of(namespace: Mapping[str, Any], path: Path) -> Any:
    """Return the value of the name with which a path begins.

    Raises:
        UsageError: There is no such name.
    """
    if path.root not in namespace:
        meant = suggest(path.root, (n for n in namespace if type(n) is str), "`{}`")
        raise UsageError(f"There is no variable {path.root!r} in this notebook. {meant}".rstrip())
    return namespace[path.root]


def follow(value: Any, path: Path, steps: tuple[PathStep, ...]) -> Any:
    """Follow some steps without running code of the objects on the way.

    Raises:
        UsageError: There is no such attribute or entry, or finding it would run the object's code.
    """
    for step in steps:
        found = _attribute(value, step.key) if step.kind == "attribute" else _entry(value, step.key)
        if found is _NOTHING:
            raise UsageError(
                f"{path.text} leads nowhere: {type(value).__name__} holds no {step.kind} "
                f"{step.key!r} of its own. (Properties are not followed, since they run code.)"
            )
        value = found
    return value


_NOTHING = object()


def _attribute(value: Any, name: str) -> Any:
    own = attributes_of(value) or {}
    if name in own:
        return own[name]
    for part in _PARTS_OF_MODULE:
        inner = own.get(part)
        if inner is not None and type(inner) in _DICTS and name in inner:
            return inner[name]
    return _NOTHING


def _entry(value: Any, key: Any) -> Any:
    bases = mro_of(type(value))
    if dict in bases:
        return dict.get(value, key, _NOTHING)
    if type(key) is int and (list in bases or tuple in bases):
        kind: Any = list if list in bases else tuple
        if -kind.__len__(value) <= key < kind.__len__(value):
            return kind.__getitem__(value, key)
    return _NOTHING


def remove(holder: Any, path: Path) -> list[str]:
    """Remove the last step of a path from its holder.

    Raises:
        UsageError: It cannot be removed without running code of the object or breaking the object.
    """
    step = path.steps[-1]
    own = attributes_of(holder)
    if step.kind == "attribute" and own is not None and step.key in own:
        del own[step.key]
        return []
    if step.kind == "entry" and type(holder) in _DICTS:
        del holder[step.key]
        return []
    if step.kind == "entry" and type(holder) is list:
        holder[step.key] = None
        return [f"{path.text} is None now, so that the other entries keep their places."]
    raise UsageError(
        f"{path.text} cannot be freed by itself: a {type(holder).__name__} cannot lose a part "
        f"safely. Free what holds it, or change it in your own code."
    )
