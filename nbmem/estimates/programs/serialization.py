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
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem import virtual
from nbmem.estimates.programs import function_serialization

if TYPE_CHECKING:
    from nbmem.virtual.tensors.storages import KnownValues

SMALL = 16 << 20
"""Bytes up to which a CPU tensor is pickled with its values: they may steer the program."""


def reduce(value: Any, notes: dict[str, None]) -> Any:
    """Return pickle's reduction of a tensor or generator.

    NotImplemented for anything else.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, (torch.Tensor, torch.Generator)):
        return NotImplemented
    if isinstance(value, torch.Generator):
        seed = value.initial_seed()
        return _new_generator, (str(value.device), seed)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"cannot copy a tensor of the class {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"cannot copy a tensor of layout {value.layout}")
    if value.grad_fn is not None:
        notes["an autograd history is not copied, so what it keeps alive is not counted"] = None
    plain = value.detach()
    made = (
        plain.untyped_storage(), plain.dtype, tuple(plain.size()), plain.stride(),
        plain.storage_offset(), bool(value.requires_grad),
        isinstance(value, torch.nn.Parameter),
    )  # fmt: skip
    state = {"grad": value.grad if value.is_leaf else None, "dict": dict(value.__dict__)}
    return _new_tensor, made, state, None, None, _fill_tensor


def storage_id(value: Any, notes: dict[str, None]) -> Any:
    """Return a storage's key in the pickle, or None for other values.

    A key has identity, device, bytes, values and what a virtual card knows of them. The values of a
    real card's tensors are not read: that would wait for the card.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.UntypedStorage):
        return None
    device, nbytes = value.device.type, value.nbytes()
    values = known = None
    if device == "cpu" and nbytes <= SMALL:
        values = bytes(torch.empty(0, dtype=torch.uint8).set_(value).numpy())
    elif device == "cpu":
        notes["tensors on the CPU of more than 16 MiB have zeros for values here"] = None
    else:
        known = virtual.known_values(value)
        if known is not None and known.cpu_values is not None and len(known.cpu_values) > SMALL:
            known = known._replace(cpu_values=None)
    return value._cdata, device, nbytes, values, known  # noqa: SLF001 - torch's own key of a storage


def new_storage(
    device: str, nbytes: int, values: bytes | None, known: KnownValues | None = None
) -> Any:
    """Create a storage of a size; on the card, from its allocator.

    Args:
        device: The type of its device.
        nbytes: Its bytes.
        values: Its values on the CPU; None: zeros.
        known: What is known of its values on a virtual card; None: nothing.
    """
    import torch

    if values:
        return torch.frombuffer(bytearray(values), dtype=torch.uint8).untyped_storage()
    storage = torch.zeros(nbytes, dtype=torch.uint8, device=device).untyped_storage()
    if device != "cpu":
        virtual.learn_values(storage, known)
    return storage


def _new_generator(device: str, seed: int) -> Any:
    import torch

    return torch.Generator(device).manual_seed(seed)


def _new_tensor(  # noqa: PLR0913, PLR0917 - a tensor's geometry
    storage: Any,
    dtype: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,  # noqa: FBT001
    parameter: bool,  # noqa: FBT001
) -> Any:
    import torch

    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor = tensor.set_(storage, offset, size, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _fill_tensor(tensor: Any, state: dict[str, Any]) -> None:
    if state["grad"] is not None:
        tensor.grad = state["grad"]
    tensor.__dict__.update(state["dict"])


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
        return storage_id(value, self.notes)

    def reducer_override(self, value: Any) -> Any:
        """Reduce tensors and functions or classes that cannot be imported."""
        reduced = reduce(value, self.notes)
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
            self._storages[number] = new_storage(*key[1:])
        return self._storages[number]
