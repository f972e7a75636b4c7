"""Run a program's language models with another length of sequence.

The tensors of token ids are replaced where a program first hands them to a model: in the outermost
call of a module, and in transformers' `generate`. What has their shape beside them (labels, masks)
in the call and in the calling frames is replaced with them, in place, so that a loss finds it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from nbmem.virtual.patches.patcher import Patch, Patches

NEW = 16
"""Tokens that a generation writes at most: the others are added to its prompt."""
DEFAULT_NEW = 20
"""Tokens that `generate` writes if nothing says how many."""
FRAMES = 24
"""Calling frames that are searched for tensors of the same shape."""
LONGEST = 4096
"""Members of a container that is searched: a longer one is a data set."""
DEPTH = 3
"""Containers inside containers that are searched for tensors."""


@dataclass(slots=True)
class TokenShapes:
    """The sequences and tokens that a program's models get.

    Attributes:
        batch: Sequences at a time; None: as the program has it.
        seq: Tokens of each, of a generation the answer's included; None: as the program has it.
        own_batch: What the program itself had, at its longest call.
        own_seq: The tokens of that call; None if no model was called with tokens.
        new: Tokens that it generates; 0 if it generates none.
        positions: Positions of the model, or None if it has no bound.
        vocabulary: Words of the model's vocabulary; 0 if that is not known.
    """

    batch: int | None = None
    seq: int | None = None
    own_batch: int = 0
    own_seq: int | None = None
    new: int = 0
    positions: int | None = None
    vocabulary: int = 0
    _depth: int = field(default=0, init=False)

    @property
    def tokens(self) -> int:
        """Tokens of its longest call, as it ran."""
        return (self.batch or self.own_batch) * (self.seq or self.own_seq or 0)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the tensors of token ids while entered."""
        import torch

        places = [(torch.nn.Module, "__call__", self._call), (torch.autograd, "backward", self._in)]
        if importlib.util.find_spec("transformers") is not None:  # a script imports it later
            from transformers import GenerationMixin

            places.append((GenerationMixin, "generate", self._generate))
        patches = Patches()
        patches.apply([Patch(at, name, wrap(getattr(at, name))) for at, name, wrap in places])
        try:
            yield
        finally:
            patches.undo()

    def _in(self, true: Any) -> Any:
        """Wrap a function whose inner calls keep their tokens.

        A checkpoint calls modules in backward.
        """

        def inside(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return true(*args, **kwargs)
            finally:
                self._depth -= 1

        return inside

    def _call(self, true: Any) -> Any:
        inner = self._in(true)

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._depth:
                self._replace(module, (args, kwargs), self.seq, 0)
            return inner(module, *args, **kwargs)

        return call

    def _generate(self, true: Any) -> Any:
        inner = self._in(true)

        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return true(model, *args, **kwargs)
            new, name = _new_tokens(model, args, kwargs)
            written = min(new, NEW)
            seq = None if self.seq is None else max(self.seq - written, 1)
            length = self._replace(model, (args, kwargs), seq, new)
            kwargs[name] = written if name == "max_new_tokens" else length + written
            return inner(model, *args, **kwargs)

        return generate

    def _replace(self, model: Any, given: Any, seq: int | None, new: int) -> int:
        """Replace the tokens of a call; return how many a sequence has then."""
        tokens = [t for t in _tensors(given) if _is_tokens(t)]
        longest = max(tokens, key=lambda t: t.shape[1], default=None)
        if longest is None:
            return 0
        batch, length = longest.shape
        if length + new > (self.own_seq or 0):
            self.own_batch, self.own_seq, self.new = batch, length + new, new
            self._read_config(model)
        seq, rows = seq or length, self.batch or batch
        if (batch, length) != (rows, seq):
            found = {id(t): t for t in _beside(given, (batch, length))}
            for tensor in found.values():
                tensor.data = _repeated(tensor, (batch, length), (rows, seq))
        return seq

    def _read_config(self, model: Any) -> None:
        for module in model.modules():
            text = getattr(getattr(module, "config", None), "get_text_config", None)
            if text is not None:
                config = text()
                limit = getattr(config, "max_position_embeddings", None)
                self.positions = limit if isinstance(limit, int) and limit > 0 else None
                self.vocabulary = getattr(config, "vocab_size", None) or 0
                return


def _new_tokens(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
    """Return how many tokens a generation writes, and the argument for that."""
    given = next((t for t in _tensors((args, kwargs)) if _is_tokens(t)), None)
    length = 0 if given is None else given.shape[1]
    configs = (
        kwargs,
        vars(kwargs.get("generation_config") or object),
        vars(model.generation_config),
    )
    for config in configs:
        if config.get("max_new_tokens"):
            return config["max_new_tokens"], "max_new_tokens"
        if config.get("max_length"):
            return max(config["max_length"] - length, 0), "max_length"
    return DEFAULT_NEW, "max_new_tokens"


def _is_tokens(tensor: Any) -> bool:
    """Return whether a tensor may be the ids of several tokens a sequence.

    A single token is what a decoding loop hands over beside its cache.
    """
    plain = not tensor.is_floating_point() and not tensor.is_complex()
    return plain and tensor.dim() == 2 and tensor.shape[1] > 1


def _beside(given: Any, shape: tuple[int, int]) -> Iterator[Any]:
    """Yield tensors of the call and its frames that have the tokens' shape."""
    yield from (t for t in _tensors(given) if _axes(t, shape))
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the calling frames' variables
    for _ in range(FRAMES):
        if frame is None:
            return
        if frame.f_code.co_filename != __file__:
            values = list(frame.f_locals.values())
            yield from (t for t in _tensors(values) if _of_tokens(t, shape))
        frame = frame.f_back


def _of_tokens(tensor: Any, shape: tuple[int, int]) -> bool:
    """Return whether a variable has the tokens' shape, or one token less."""
    sizes = tuple(tensor.shape)
    shifted = sizes == (shape[0], shape[1] - 1)
    return not tensor.is_floating_point() and (sizes == shape or shifted)


def _tensors(given: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield the plain tensors in an object and in its dicts, lists and tuples."""
    import torch

    if isinstance(given, torch.Tensor):
        if not given.requires_grad:
            yield given
        return
    inner: Sequence[Any] = ()
    data = getattr(given, "data", None) if hasattr(given, "input_ids") else None  # a BatchEncoding
    if isinstance(given, dict) or isinstance(data, dict):
        inner = list((data if isinstance(data, dict) else given).values())
    elif type(given) in {list, tuple}:
        inner = given
    if depth and len(inner) <= LONGEST:
        for one in inner:
            yield from _tensors(one, depth - 1)


def _axes(tensor: Any, shape: tuple[int, int]) -> dict[int, int]:
    """Return the axes of a tensor that are the batch (0) or the tokens (1)."""
    (batch, seq), sizes = shape, tensor.shape
    if not sizes:
        return {}
    rows = {0: 0} if len(sizes) > 1 and sizes[0] == batch else {}
    if len(sizes) == 4 and sizes[1] == 1:  # a mask for each pair of tokens
        pairs = {axis: 1 for axis in (2, 3) if sizes[axis] == seq}
        return {**rows, **pairs} if pairs else {}
    axis = 1 if tensor.is_floating_point() or len(sizes) == 2 else len(sizes) - 1
    if axis >= len(sizes) or sizes[axis] not in {seq, seq - 1} or len(sizes) > 3:
        return {}
    return {**rows, axis: 1}


def _repeated(tensor: Any, own: tuple[int, int], wanted: tuple[int, int]) -> Any:
    """Return a tensor with other rows and tokens, filled with its own again."""
    axes = _axes(tensor, own)
    sizes = list(tensor.shape)
    for axis, kind in axes.items():
        sizes[axis] += wanted[kind] - own[kind]
    times = [-(-size // max(have, 1)) for size, have in zip(sizes, tensor.shape, strict=True)]
    repeated = tensor.detach().repeat(times)
    return repeated[tuple(slice(size) for size in sizes)].contiguous()
