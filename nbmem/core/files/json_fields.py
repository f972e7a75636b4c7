"""Read fields of a session's JSON, each with its type checked.

Every message is the middle of a sentence: the reader adds the file's name as a prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, Union

from nbmem.core.errors import FileFormatError
from nbmem.core.files.session_checks import LAST_NS, MAX_BYTES
from nbmem.core.session.tensor_names import NAME, SENTENCE, printable_text

_T = TypeVar("_T")
_DEPTH = 8
"""Nesting depth of lists and objects in facts."""
MAX_INTEGER = 1 << 62

Kind = Union[str, tuple["Kind", ...], dict[str, "Kind"]]  # noqa: UP007 - the names are texts
"""`int`, `bool`, `str`, `int?` (or None), `[int]`, `[[int]]`; an object by its keys; (object,) is a
list of such objects. Keys with `?` may be missing."""

_CALL: Kind = {
    "module": "str?",
    "training": "bool",
    "grad": "bool",
    "autocast": "str?",
    "rows": "int?",
    "chained?": "bool",
    "of_inputs?": "bool",
    "count": "int",
}
_BLOCK: Kind = {"path": "str", "class": "str", "count": "int"}
_MODULE: Kind = {
    "name": "str",
    "class": "str",
    "training": "bool",
    "parameters": "int",
    "bytes": "int",
    "float32_bytes": "int",
    "blocks": (_BLOCK,),
    "relu_not_inplace": "int",
    "called": "bool",
    "checkpointed?": {"count": "int", "training": "int", "evaluating": "str?"},
    "gradient_as_bucket_view?": "bool",
    "fsdp_units?": "[int]",
    "fsdp_paths?": "[str]",
    "zero?": {"bucket": "int", "gradients": "int"},
}
_OPTIMIZER: Kind = {
    "name": "str",
    "class": "str",
    "torch": "bool",
    "switches": {},
    "parameters": "[int]",
    "shapes": "[[int]]",
    "with_gradient": "[bool]",
    "float32": "bool",
    "states": "int",
}
_PIPELINE: Kind = {
    "name": "str",
    "offloaded": "bool",
    "models": ({"module": "str", "class": "str", "bytes": "int", "float32_bytes": "int"},),
}
_FACTS: dict[str, Kind] = {
    "calls?": (_CALL,),
    "modules?": (_MODULE,),
    "optimizers?": (_OPTIMIZER,),
    "batches?": ({"name": "str", "value": "int"},),
    "pipelines?": (_PIPELINE,),
    "cudnn_benchmark?": "bool",
    "cublas_workspace_config?": "str?",
    "pinned?": {"held": "int", "used": "int"},
    "communicators?": ({"name": "str", "device": "int", "held": "int"},),
    "pools?": ({"pool": "str", "users": "str"},),
    "threads?": "int",
    "parts?": ({"name": "str", "names": ("int",)},),
}
_CALLER: Kind = {"function": "str", "variables": "[str]"}
FACTS: Kind = {**_FACTS, "before_return?": {**_FACTS, "callers?": (_CALLER,), "in_loop?": "bool"}}
"""Facts that the recorder writes, and the tips and the ledger read; other keys are accepted."""
_OF_EACH_PARAMETER = ("parameters", "shapes", "with_gradient")


class Fields:
    """A JSON object whose fields are read by their expected types."""

    def __init__(self, raw: Any, what: str) -> None:
        if type(raw) is not dict:
            raise FileFormatError(f"{what} is no object")
        self._raw: dict[str, Any] = raw
        self._what = what

    def number(self, name: str, most: int = MAX_INTEGER, *, least: int = 0) -> int:
        """Return an integer field within the given range."""
        value = self._raw.get(name)
        if type(value) is not int or not least <= value <= most:
            self._refuse(name)
        return value

    def count(self, name: str) -> int:
        """Return a field that holds a number of bytes."""
        return self.number(name, MAX_BYTES)

    def time(self, name: str) -> int:
        """Return a field that holds nanoseconds since the epoch."""
        return self.number(name, LAST_NS)

    def text(self, name: str, most: int = NAME) -> str:
        """Return a text field in printable form."""
        value = self._raw.get(name)
        if type(value) is not str:
            self._refuse(name)
        return printable_text(value, most)

    def flag(self, name: str) -> bool:
        """Return a boolean field; False if it is missing."""
        value = self._raw.get(name, False)
        if type(value) is not bool:
            self._refuse(name)
        return value

    def fraction(self, name: str) -> float:
        """Return a field that holds a number from 0 to 1."""
        value: Any = self._raw.get(name)
        if type(value) not in {int, float} or not 0 <= value <= 1:
            self._refuse(name)
        return float(value)

    def maybe(self, read: Callable[[str], _T], name: str) -> _T | None:
        """Return a field read by another method, or None if null or missing."""
        return None if self._raw.get(name) is None else read(name)

    def items(self, name: str) -> list[Any]:
        """Return a list field; empty if it is missing."""
        value = self._raw.get(name, [])
        if type(value) is not list:
            self._refuse(name)
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Return an object field; empty if it is missing or null."""
        value = self._raw.get(name)
        if value is None:
            return {}
        if type(value) is not dict:
            self._refuse(name)
        return value

    def numbers(self, name: str, most: int = MAX_INTEGER, *, least: int = 0) -> tuple[int, ...]:
        """Return a field that lists integers within the given range."""
        value = self.items(name)
        if not all(type(one) is int and least <= one <= most for one in value):
            self._refuse(name)
        return tuple(value)

    def texts(self, name: str, most: int = NAME) -> tuple[str, ...]:
        """Return a field that lists texts, in printable form."""
        value = self.items(name)
        if not {str} >= set(map(type, value)):
            self._refuse(name)
        return tuple([printable_text(text, most) for text in value])

    def _refuse(self, name: str) -> NoReturn:
        value = self._raw.get(name)
        received = "nothing" if name not in self._raw else _described(value)
        raise FileFormatError(f"{self._what} has {received} for its {name}")


def _described(value: Any) -> str:
    if type(value) is int:
        return str(value) if -MAX_INTEGER < value < MAX_INTEGER else "too large a number"
    return f"a {type(value).__name__}"


def facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the facts about the program.

    What the tips and the ledger rely on is checked.
    """
    found: dict[str, Any] = _plain(dict(raw), _DEPTH)
    if not _is(found, FACTS) or not all(
        len({len(optimizer[key]) for key in _OF_EACH_PARAMETER}) == 1
        for then in (found, found.get("before_return", {}))
        for optimizer in then.get("optimizers", ())
    ):
        raise FileFormatError("its facts about the program are not as nbmem writes them")
    return found


def _plain(value: Any, depth: int) -> Any:
    """Sanitize JSON data: printable texts, bounded numbers, limited depth.

    Anything else becomes None.
    """
    if type(value) is str:
        return printable_text(value, SENTENCE)
    if type(value) in {bool, type(None)}:
        return value
    if type(value) in {int, float}:
        return value if math.isfinite(value) and abs(value) <= MAX_INTEGER else None
    if depth and type(value) is list:
        return [_plain(one, depth - 1) for one in value]
    if depth and type(value) is dict:
        return {printable_text(str(key)): _plain(one, depth - 1) for key, one in value.items()}
    return None


_SCALARS = {"bool": bool, "str": str}


def _is(value: Any, kind: Kind) -> bool:
    if isinstance(kind, dict):
        return type(value) is dict and all(
            _is(value[key], wanted) if (key := name.rstrip("?")) in value else name != key
            for name, wanted in kind.items()
        )
    if isinstance(kind, tuple):
        return type(value) is list and all(_is(one, kind[0]) for one in value)
    if kind.endswith("?"):
        return value is None or _is(value, kind[:-1])
    if kind.startswith("["):
        return type(value) is list and all(_is(one, kind[1:-1]) for one in value)
    if kind == "int":
        return type(value) is int and value >= 0
    return type(value) is _SCALARS[kind]
