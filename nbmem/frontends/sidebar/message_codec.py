"""Encode and decode messages as JSON, checked by their declarations."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from nbmem.core.errors import UsageError
from nbmem.frontends.sidebar import messages, requests

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.messages import Push
    from nbmem.frontends.sidebar.requests import Reply, Request

PUSHES: tuple[type, ...] = get_args(messages.Push)
REQUESTS: tuple[type, ...] = get_args(requests.Request)
REPLIES: tuple[type, ...] = get_args(requests.Reply)

_MOST_ITEMS = 1000
_MOST_INTEGER = 2**53 - 1
"""JavaScript's largest exact integer."""


def kind_of(message: type) -> str:
    """Return a message's name on the wire, such as `cell_begun`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


@functools.cache
def hints(record: type) -> dict[str, Any]:
    """Return a declaration's fields and their types, in order."""
    from nbmem.report.model import Finding, Peak  # of the last report, in messages.py

    return get_type_hints(record, localns={"Finding": Finding, "Peak": Peak})


def encode(message: Push | Reply | Request) -> dict[str, Any]:
    """Encode a message."""
    return {"nbmem": messages.VERSION, "kind": kind_of(type(message)), **_plain(message)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def decode_push(data: Any) -> Push:
    """Decode a message that the kernel pushed.

    A page does this; here it serves tests and Python front ends.

    Raises:
        UsageError: It is not one of PUSHES.
    """
    push: Push = _message(data, PUSHES)
    return push


def decode_reply(data: Any) -> Reply:
    """Decode an answer; raises as decode_push does."""
    reply: Reply = _message(data, REPLIES)
    return reply


def decode_request(data: Any) -> Request:
    """Decode a request of a page.

    Raises:
        UsageError: It is not one of REQUESTS, with each field of its type and length.
    """
    request: Request = _message(data, REQUESTS, strict=True)
    return request


def _message(data: Any, kinds: Iterable[type], *, strict: bool = False) -> Any:
    if not isinstance(data, dict) or "nbmem" not in data:
        raise UsageError("This message is not nbmem's.")
    version = data["nbmem"]
    if version != messages.VERSION or isinstance(version, bool):
        raise UsageError(
            f"This message is of version {str(version)[:20]}, and nbmem here speaks version "
            f"{messages.VERSION}. Install the same nbmem in the kernel and in JupyterLab, and load "
            "it again."
        )
    kind = data.get("kind")
    for declared in kinds:
        if kind == kind_of(declared):
            body = {key: value for key, value in data.items() if key not in {"nbmem", "kind"}}
            return _Reader(strict=strict).record(declared, body, declared.__name__)
    names = ", ".join(kind_of(declared) for declared in kinds)
    raise UsageError(f"{str(kind)[:40]!r} is no message that is taken here. There are: {names}.")


def _is_number(value: Any) -> bool:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return fits and abs(value) <= _MOST_INTEGER  # False for NaN


_SCALARS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    float: ("a number", _is_number),
    int: ("a whole number", lambda v: isinstance(v, int) and _is_number(v)),
    str: (f"a text of at most {requests.MOST_TEXT} characters", lambda v: isinstance(v, str)),
    bool: ("true or false", lambda v: isinstance(v, bool)),
}


class _Reader:
    """A decoder that checks values against declared types.

    Args:
        strict: Refuse unknown fields and long texts (a request's).
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict

    def record(self, kind: type, value: Any, where: str) -> Any:
        """Check an object against a declaration."""
        if not isinstance(value, dict):
            raise _refused(where, value, "an object")
        known = hints(kind)
        strange = value.keys() - known.keys()
        if self._strict and strange:
            raise UsageError(f"{where} has no field {min(map(str, strange))[:40]!r}.")
        missing = known.keys() - value.keys()
        if missing:
            raise UsageError(f"{where} lacks {min(missing)}.")
        return kind(**{k: self.value(t, value[k], f"{where}.{k}") for k, t in known.items()})

    def value(self, kind: Any, value: Any, where: str) -> Any:
        """Check a value of any declared type; `where` names it in a refusal."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in {Union, UnionType}:
            if value is None:
                return None
            (kind,) = (a for a in arguments if a is not NoneType)
            return self.value(kind, value, where)
        if origin is tuple:
            return self._tuple(arguments, value, where)
        if origin is Literal:
            if value not in arguments:
                raise _refused(where, value, f"one of {', '.join(arguments)}")
            return value
        if kind not in _SCALARS:
            return self.record(kind, value, where)
        name, fits = _SCALARS[kind]
        if not fits(value) or (self._strict and kind is str and len(value) > requests.MOST_TEXT):
            raise _refused(where, value, name)
        return kind(value)

    def _tuple(self, kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
        many = kinds[-1] is Ellipsis
        fits = isinstance(value, list) and (
            len(value) <= _MOST_ITEMS if many else len(value) == len(kinds)
        )
        if not fits:
            raise _refused(where, value, "a list" if many else f"a list of {len(kinds)}")
        each = (kinds[0],) * len(value) if many else kinds
        pairs = zip(each, value, strict=True)
        return tuple(self.value(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(pairs))


def _refused(where: str, value: Any, wanted: str) -> UsageError:
    return UsageError(f"{where} must be {wanted}, not {repr(value)[:60]}.")
