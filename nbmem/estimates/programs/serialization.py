"""Pickle the names that a program uses, for another process.

Pickle does most of it, with two additions. Functions and classes of the notebook, which no other
process can import, are pickled as code. Tensors are pickled without their data, as the sizes of
their storages, so that a model of any size takes no memory. Identities are preserved: objects and
storages that are shared here are shared in the copy. An optimizer still has the parameters of its
model.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.estimates.programs import function_serialization, tensor_serialization

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARED = frozenset({"__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__"})


@dataclass(frozen=True, slots=True)
class PickledNames:
    """Names and their values, pickled.

    Attributes:
        parts: Pickles that are read one after the other, with one memo: {name: value} each.
        names: What they hold, in their order.
        home: The module whose functions and classes are pickled as code.
        left_out: What could not be copied: name, and what it is.
        notes: What is not quite the same in a copy: name, and what it is.
    """

    parts: bytes
    names: tuple[str, ...]
    home: str
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, str], ...]

    def open(self, namespace: dict[str, Any]) -> None:
        """Unpickle the copies into a namespace.

        Each storage is allocated anew on the active card.
        """
        unpickler = _Unpickler(io.BytesIO(self.parts))
        with function_serialization.unpickling_globals(namespace):
            for _ in self.names:
                namespace.update(unpickler.load())
        for name, kind in self.left_out:
            namespace[name] = NotCopied(name, kind)


class NotCopiedError(Exception):
    """An error raised on use of a name that could not be copied."""


class NotCopied:
    """A placeholder for a value that was not copied; raises when used."""

    def __init__(self, name: str, kind: str) -> None:
        self.__dict__["said"] = (
            f"{name} is {kind}, which cannot be copied: make it inside the cell, or take it out"
        )

    def _refuse(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotCopiedError(self.__dict__["said"])

    __call__ = __iter__ = __next__ = __len__ = __enter__ = __getitem__ = __setitem__ = _refuse
    __setattr__ = __bool__ = __add__ = __radd__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


def pack(
    namespace: Mapping[str, Any], names: Iterable[str], home: str = "__main__"
) -> PickledNames:
    """Pickle the named values and those that their code uses in turn.

    Args:
        namespace: Where they are.
        names: The ones that the program mentions; those that are not there are passed over.
        home: Module of the functions and classes that are pickled as code, beside `__main__`.
    """
    wanted = [name for name in names if name in namespace and name not in SHARED]
    done: set[str] = set()
    copied: list[str] = []
    left_out: list[tuple[str, str]] = []
    notes: list[tuple[str, str]] = []
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, home)
    while wanted:
        name = wanted.pop(0)
        if name in done:
            continue
        done.add(name)
        try:  # into nowhere first: half a pickle would spoil the ones that follow
            _Pickler(io.BytesIO(), home).dump(namespace[name])
        except Exception as err:  # noqa: BLE001 - whatever an object does when it is pickled
            left_out.append((name, _kind(namespace[name], err)))
            continue
        pickler.dump({name: namespace[name]})
        notes += [(name, note) for note in pickler.notes]
        pickler.notes.clear()
        copied.append(name)
        wanted += [n for n in sorted(pickler.mentioned) if n in namespace and n not in SHARED]
        pickler.mentioned.clear()
    return PickledNames(buffer.getvalue(), tuple(copied), home, tuple(left_out), tuple(notes))


def _kind(value: Any, error: Exception) -> str:
    """Describe a value that cannot be copied, such as `a generator`."""
    if isinstance(value, io.IOBase):
        return "an open file"
    what = type(value).__name__
    article = "an" if what[:1].lower() in "aeiou" else "a"
    reason = str(error).partition("\n")[0]
    inside = "" if what in reason else f" ({reason})"
    return f"{article} {what}{inside}"


class _Pickler(pickle.Pickler):
    """A pickler with two more rules: for tensors and for notebook code.

    Attributes:
        mentioned: Global names that are used by functions and classes pickled since the last clear.
        notes: What is not quite the same in the copy; cleared at the same time.
    """

    def __init__(self, file: io.BytesIO, home: str) -> None:
        super().__init__(file, protocol=5)
        self.mentioned: set[str] = set()
        self.notes: dict[str, None] = {}
        self._homes = frozenset({"__main__", home})

    def persistent_id(self, value: Any) -> Any:
        """Return the key of a storage, with its size; None for other values."""
        return tensor_serialization.storage_id(value, self.notes)

    def reducer_override(self, value: Any) -> Any:
        """Reduce tensors and functions or classes that cannot be imported."""
        reduced = tensor_serialization.reduce(value, self.notes)
        if reduced is NotImplemented:
            reduced = function_serialization.reduce(value, self._homes, self.mentioned)
        return reduced


class _Unpickler(pickle.Unpickler):
    """An unpickler for `_Pickler`'s output.

    One reads all parts, so that their objects stay the same.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, Any] = {}

    def persistent_load(self, key: Any) -> Any:
        """Return the storage of a key, created at its first use."""
        number = key[0]
        if number not in self._storages:
            self._storages[number] = tensor_serialization.new_storage(*key[1:])
        return self._storages[number]
