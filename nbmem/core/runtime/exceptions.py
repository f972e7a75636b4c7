"""Read exceptions through BaseException's own descriptors.

A user's exception class may override attributes with code of its own. Nothing here runs that code.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

Kind = TypeVar("Kind", bound=BaseException)

_KEPT: Any = vars(BaseException)


def is_raised(err: BaseException | None, kind: type[Kind]) -> TypeGuard[Kind]:
    """Return whether an exception's type is of a kind.

    An exception's own `__class__` is not read.
    """
    return issubclass(type(err), kind)


def traceback_of(err: BaseException) -> TracebackType | None:
    """Return the traceback of an exception."""
    found: TracebackType | None = _KEPT["__traceback__"].__get__(err)
    return found


def set_traceback(err: BaseException, traceback: TracebackType | None) -> None:
    """Set the traceback of an exception."""
    _KEPT["__traceback__"].__set__(err, traceback)


def clear_traceback(err: BaseException) -> None:
    """Remove an exception's traceback, which would keep its frames alive."""
    set_traceback(err, None)


def linked_exceptions(err: BaseException) -> tuple[BaseException | None, ...]:
    """Return an exception's cause, its context and the members of a group."""
    is_group = is_raised(err, BaseExceptionGroup)
    members = vars(BaseExceptionGroup)["exceptions"].__get__(err) if is_group else ()
    return _KEPT["__cause__"].__get__(err), _KEPT["__context__"].__get__(err), *members


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all that it links to, each once, nearest first."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop(0)
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += linked_exceptions(one)


def message_of(err: BaseException) -> str:
    """Return the text in an exception's first argument, or an empty text."""
    args = _KEPT["args"].__get__(err)
    return args[0] if args and type(args[0]) is str else ""
