"""Exceptions as Python keeps them: one of the user's own may do anything when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

Kind = TypeVar("Kind", bound=BaseException)

_KEPT: Any = vars(BaseException)


def is_raised(err: BaseException | None, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether an exception is of a kind, whatever its `__class__` says."""
    return issubclass(type(err), kind)


def traceback_of(err: BaseException) -> TracebackType | None:
    """Where an exception was raised."""
    found: TracebackType | None = _KEPT["__traceback__"].__get__(err)
    return found


def set_traceback(err: BaseException, traceback: TracebackType | None) -> None:
    """Say where an exception was raised."""
    _KEPT["__traceback__"].__set__(err, traceback)


def forget_way(err: BaseException) -> None:
    """Forget where an exception was raised: it would keep the frames that it came through."""
    set_traceback(err, None)


def behind(err: BaseException) -> tuple[BaseException | None, ...]:
    """The cause and the context of an exception, and the members of a group."""
    is_group = is_raised(err, BaseExceptionGroup)
    members = vars(BaseExceptionGroup)["exceptions"].__get__(err) if is_group else ()
    return _KEPT["__cause__"].__get__(err), _KEPT["__context__"].__get__(err), *members


def words_of(err: BaseException) -> str:
    """The text that it was raised with, empty if it was raised with something else."""
    args = _KEPT["args"].__get__(err)
    return args[0] if args and type(args[0]) is str else ""
