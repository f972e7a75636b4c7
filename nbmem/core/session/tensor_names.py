"""Build and parse the names of tensors.

Capture code writes these names, and code that reads a recording parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

SAVED_BY, SAVED_AFTER = "saved by ", "saved after "
"""Prefix of the module that saved a tensor for backward, or that the saving operator follows."""
GRADIENT_OF, GRADIENT_IN, BACKWARD_OF = "gradient of ", "gradient in ", "backward of "
"""Prefix of the module to whose result a gradient belongs, or in which that result is, or in whose
backward a tensor was allocated."""
BUFFER_OF, RECOMPUTED = "buffer of ", "recomputed in "
AUTOCAST_COPY = "autocast's copy of "
"""Prefix of the module of a compiled region's buffers: of its forward, or again of its backward."""
ADDED_TO = "added to "
"""Prefix of a parameter's gradient that is a sum, for what one use of the parameter adds."""
TEMPORARY, MADE = "temporary ", "made "
"""Prefix of the place of an unobserved allocation: freed within the phase, or outliving it."""
GATHERED, ALL_GATHER = "gathered", "all-gather"
"""Suffixes: of a parameter that FSDP has gathered, and of a unit, for the buffer into which its
shards are gathered."""
DTENSOR = "DTensor's"
"""Prefix of the collective that allocated the result of a redistribution."""
ZERO_BUCKET = "ZeRO's bucket of gradients"
"""The buffer from which DeepSpeed sends gradients. Parameters' gradients may be slices of it."""
VIEW = ", a view"
"""Suffix of the shape and dtype of a tensor that is only a part of its storage."""
STEP = ".step()"
"""Suffix of an optimizer whose step was called."""
KEY_OF = "a key of "
"""Prefix for an object with a tensor as a dictionary's key, such as an optimizer's state."""
GRAPH_OF = "the graph of "
"""Prefix for what only the graph of a tensor keeps."""
LOCAL = "local "
"""Prefix of a variable of a function, a generator or a coroutine; variable_paths.py parses it."""
CONTEXT = "ctx"
"""Beginning of the path from an autograd function's context: `ctx.saved of Scale`."""
WRITES_TO = "in-place writes to "
"""Prefix for what only the graph of a buffer's in-place writes can keep."""
LRU_CACHE_OF = "the lru_cache of "
"""Prefix for what functools.lru_cache keeps: the arguments of a function's calls."""
IN_TRACEBACK = "in the traceback of "
"""Between a frame's local and the object that retains the exception that ended the frame."""
NAME, SENTENCE = 1_000, 4_000
"""Maximum characters of a name (a tensor's, a file's, a card's) and a sentence (a note, an
error)."""
_OF_GRAPH = (
    SAVED_BY, SAVED_AFTER, GRADIENT_OF, GRADIENT_IN, BACKWARD_OF, BUFFER_OF, RECOMPUTED, ADDED_TO
)  # fmt: skip
_SAVED = re.compile(rf"(?:{SAVED_BY}|{SAVED_AFTER})(\S+)(?: \([^()]+\))?$")
_PLACE = rf"(?:{TEMPORARY}|{MADE})(?:of|by|near|before|after) "
_ROOT = re.compile(
    rf"(?:input |{LOCAL}|{SAVED_BY}|{GRADIENT_OF}|{_PLACE})?(?:Out\[\d+\]|[A-Za-z_]\w*)"
)
_INDEX = re.compile(r"\[\d+\]")
_LAYER = re.compile(r"\.\d+(?=[.\s]|$)")
_STORED = re.compile(r"\._(?:store|(?:node|edge)_store_dict(\[[^\]]*\]))\._mapping\['(\w+)'\]")
"""Where torch_geometric's Data stores its attributes."""
_FORM = re.compile(rf" \([\d, ]*\) \w+(?:{VIEW})?$")
_STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_TAIL = 32
"""Characters reserved for the length of the cut text."""


def printable_text(text: str, most: int = NAME) -> str:
    """Return a text in a form that every view can display.

    Control characters, lone surrogates and marks that change the direction of writing are written
    as escapes. A text that is too long is cut, and ends with its full length.

    Args:
        text: A text chosen by a program or a file.
        most: Maximum characters of the result.
    """
    if len(text) <= most and text.isprintable():
        return text
    clean = _STEERS.sub(_escaped, text[:most])
    if len(text) <= most and len(clean) <= most:
        return clean
    return f"{clean[: most - _TAIL]}... ({len(text):,} characters)"


def printable_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts in a form that every view can display."""
    if max(map(len, texts), default=0) <= NAME and "".join(texts).isprintable():
        return tuple(texts)
    return tuple(map(printable_text, texts))


def quoted(text: object, most: int = 100) -> str:
    """Return a text in quotes for a sentence, cut to a maximum length."""
    return repr(printable_text(str(text), most))


def with_article(card: str) -> str:
    """Return a card's name with its article: `a Tesla T4`, `an NVIDIA L4`."""
    return f"{'an' if card.startswith(('NVIDIA', 'AMD', 'Intel', 'Apple')) else 'a'} {card}"


def _escaped(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def is_context(path: str) -> bool:
    """Return whether a path leads from the context of an autograd function."""
    return re.match(rf"{CONTEXT}(\.\w+)? of ", path) is not None


def is_graph_name(name: str | None) -> bool:
    """Return whether a name says which module's results a tensor is of.

    The other names give what holds the tensor.
    """
    return name is not None and name.startswith(_OF_GRAPH)


def saver_of(name: str) -> str | None:
    """Return the module or operator that saved a tensor, from its name.

    The name must not include a shape. The result is None for names of other kinds.
    """
    found = _SAVED.match(name)
    return found[1] if found else None


def is_place(name: str | None) -> bool:
    """Return whether a name gives only the place where a tensor was made.

    If the source line is known, it is more specific.
    """
    return name is not None and re.match(_PLACE, name) is not None


def module_in_name(name: str) -> str:
    """Return the module or operator in a graph name: `model.conv1`.

    The name must be a graph name: one of the module whose result or gradient a tensor is.
    """
    word = next(word for word in _OF_GRAPH if name.startswith(word))
    path = name.removeprefix(word).partition(" ")[0]
    return module_of_parameter(path.removesuffix(".grad")) if word == ADDED_TO else path


def module_in_any_name(name: str) -> str | None:
    """Return the module in a graph name or in the name of a place, or None.

    For a place it is the module near which or by which the tensor was made.
    """
    if is_graph_name(name):
        return module_in_name(name)
    place = re.match(_PLACE, name)
    return None if place is None else re.split(r"[ ,]", name[place.end() :], maxsplit=1)[0]


def module_of_parameter(parameter: str) -> str:
    """Return the module that uses a parameter: `net.fc` of `net.fc.weight`.

    A parameter whose name is a number is in a list. The module that has the list uses it: `net` of
    `net.vars.3`.
    """
    path, _, own = parameter.rpartition(".")
    return path.rpartition(".")[0] or path if own.isdecimal() else path


def in_traceback(path: str) -> bool:
    """Return whether a path leads through the frames of a kept exception."""
    return IN_TRACEBACK in path


def root_of(name: str) -> str:
    """Return the root of a name, the variable that one would delete.

    `model` of `model.layer1.0.conv1.weight (64, 3, 7, 7) float32`. For tensors saved anywhere in
    the model's graph it is `saved by model`, and for gradients of its results `gradient of model`.
    A tensor whose allocation was not observed is `temporary near model`.
    """
    for word in (SAVED_AFTER, BUFFER_OF):
        name = name.replace(word, SAVED_BY, 1) if name.startswith(word) else name
    for word in (GRADIENT_IN, BACKWARD_OF, RECOMPUTED, ADDED_TO):
        name = name.replace(word, GRADIENT_OF, 1) if name.startswith(word) else name
    match = _ROOT.match(name)
    return match[0] if match else name


def without_shape(name: str) -> str:
    """Return a name without the shape and dtype behind it."""
    return _FORM.sub("", name)


def as_source(path: str) -> str:
    """Return a path as a person writes it in source code.

    `data.x` for `data._store._mapping['x']` of PyTorch Geometric.
    """
    return _STORED.sub(r"\1.\2", path) if "._mapping[" in path else path


def common_path(paths: Iterable[str]) -> str:
    """Return the deepest module path that contains all of these paths.

    `model.2` of `model.2.up.weight` and `model.2.norm.bias`.
    """
    inner = [path.split(".")[:-1] for path in paths]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*inner, strict=False))
    return ".".join(parts[0] for parts in same)


def without_numbers(name: str) -> str:
    """Replace list indices and layer numbers in a name by placeholders.

    Names that differ only in these become equal: `losses[...]`, `model.layers.*.linear1.weight`.
    """
    return _INDEX.sub("[...]", _LAYER.sub(".*", name))
