"""Parse Inductor's wrapper code to identify the buffers in it.

The text is the wrapper that runs a compiled region's kernels. Its code gives the order in which
buffers are allocated, their forms, and which kernel writes each from what. A comment before each
kernel names ATen's operators. The text is equal on a real and a virtual card, and in a process that
compiled the graph or found it in a cache. If nbmem plans a graph itself, further comments name the
module's operator of each buffer (core/session/buffer_annotations.py).
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codegen/wrapper.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from nbmem.capture.graphs.wrapper_buffers import Buffer, CompiledGraph
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.buffer_annotations import parse_annotation

MAX_CHARACTERS = 32 * 1024 * 1024
_HEAD = re.compile(r"# AOT ID: \['\d+_(forward|backward|inference)'\]")
_ATEN = re.compile(r" Original ATen: \[(.*)\]")
_FORM = re.compile(r"(\w+) = rand_strided\((\(.*?\)), \(.*?\), .*dtype=torch\.(\w+)")
_SYMBOL = re.compile(r"(?:s|u|ks|z[uf]*)\d+$")
_FUNCTION = re.compile(r"call$|partition_\d+$")
_BUFFER = re.compile(r"buf\d+$")
_SOURCES = re.compile(r"#.* Source Nodes: \[(.*?)\]")
_VIEWS = frozenset(
    (
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "expand",
        "getitem",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    )
)
"""Operators that compute nothing; a kernel is named after its other operators."""
_MAX_OPERATORS = 4


def read_wrapper(text: str) -> CompiledGraph | None:
    """Parse the text of an Inductor wrapper; None for any other text."""
    head = _HEAD.search(text[:4096])
    if head is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        tree = ast.parse(text)
        return _TextReader(text).read(head[1], tree)
    except (SyntaxError, ValueError, RecursionError, LookupError, AttributeError) as err:
        reraise_if_from_signal(err)  # text of another release
        return None


class _TextReader:
    """A parser of a wrapper's functions, statement by statement."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        annotation = (parse_annotation(line) for line in self._lines)
        self._annotation = {one.buffer: one for one in annotation if one is not None}
        self._dtypes = {name: dtype for name, _, dtype in _FORM.findall(text)}
        self._root: dict[str, str] = {}  # the storage that each name refers to
        self._buffers: dict[str, Buffer] = {}
        self._last: dict[str, Buffer] = {}
        self._unwritten: set[str] = set()
        self._arguments: tuple[str, ...] = ()
        self._results: tuple[str | None, ...] = ()

    def read(self, kind: str, tree: ast.Module) -> CompiledGraph:
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and _FUNCTION.match(node.name)
        ]
        # Called functions come first, in the text as at runtime; `call` has the arguments.
        for function in sorted(functions, key=lambda one: (one.name == "call", one.lineno)):
            for statement in _flat(function.body):
                self._statement(statement, outer=function.name == "call")
        buffers = tuple(map(_with_form, self._buffers.values()))
        return CompiledGraph(kind, self._arguments, buffers, self._results, self._last)

    def _statement(self, statement: ast.stmt, *, outer: bool) -> None:
        if isinstance(statement, ast.Return) and outer:
            value = statement.value
            parts = value.elts if isinstance(value, ast.Tuple) else []
            self._results = tuple(self._storage(part) for part in parts)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value, [])
        elif isinstance(statement, ast.Assign):
            targets = [
                name.id
                for target in statement.targets
                for name in (target.elts if isinstance(target, ast.Tuple) else [target])
                if isinstance(name, ast.Name)
            ]
            if isinstance(statement.value, ast.Call):
                self._call(statement.value, targets)
            elif isinstance(statement.value, ast.Name) and statement.value.id == "args":
                self._arguments = tuple(targets) if outer else self._arguments
            else:
                self._named(targets, statement.value)

    def _named(self, targets: list[str], value: ast.expr) -> None:
        """Handle an assignment of an alias, a tuple's element or a symbol."""
        if len(targets) != 1:
            return
        if isinstance(value, ast.Name) and _SYMBOL.match(targets[0]):
            self._arguments = tuple(name for name in self._arguments if name != value.id)
        elif isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
            whole = self._buffers.get(value.value.id)
            if whole is not None:  # one of several results of an ATen kernel
                self._take(whole._replace(name=targets[0], shape=(), dtype=""))
        else:
            self._rename(targets[0], value)

    def _rename(self, name: str, value: ast.expr) -> None:
        storage = self._storage(value)
        if storage is not None:
            self._root[name] = storage
            self._unwritten.add(name)

    def _call(self, call: ast.Call, targets: list[str]) -> None:
        function = ast.unparse(call.func)
        if function.startswith("empty_strided") and targets:
            shape, dtype = call.args[0], ast.unparse(call.args[-1]).removeprefix("torch.")
            self._take(Buffer(targets[0], _extents(shape), dtype, "", ()))
            self._unwritten.add(targets[0])
        elif function == "assert_size_stride":
            self._sized(call)
        elif function in ("reinterpret_tensor", "alloc_from_pool", "copy_if_misaligned"):
            if targets and targets[0] not in self._arguments:
                self._rename(targets[0], call)
        else:
            self._kernel(call, function, targets)

    def _sized(self, call: ast.Call) -> None:
        name = ast.unparse(call.args[0])
        buffer = self._buffers.get(name)
        if buffer is not None and not buffer.shape:
            dtype = next((d for one in buffer.reads if (d := self._dtype(one))), "")
            self._buffers[name] = buffer._replace(shape=_extents(call.args[1]), dtype=dtype)

    def _dtype(self, name: str) -> str:
        buffer = self._buffers.get(name)
        return self._dtypes.get(name, "") if buffer is None else buffer.dtype

    def _take(self, buffer: Buffer) -> None:
        self._root[buffer.name] = buffer.name
        self._buffers[buffer.name] = buffer._replace(annotation=self._annotation.get(buffer.name))

    def _kernel(self, call: ast.Call, function: str, targets: list[str]) -> None:
        given = [n for arg in call.args for n in self._names(arg)]
        out = [n for word in call.keywords if word.arg == "out" for n in self._names(word.value)]
        if not given and not out and not targets:
            return
        operators, sources = self._words(call.lineno, function)
        unwritten = self._unwritten.intersection(given)
        written = [name for name in (*given, *out) if name in unwritten or name in out]
        roots = [self._root.get(name, name) for name in given if name not in unwritten]
        made = Buffer("", (), "", operators, tuple(dict.fromkeys(roots)), sources)
        for name in written:
            self._write(name, made)
        if not written or not function.endswith(".run"):
            for name in filter(_BUFFER.match, targets):
                self._take(made._replace(name=name))

    def _write(self, name: str, made: Buffer) -> None:
        """Record that a kernel writes a value to a storage.

        The storage is new, or had another value before.
        """
        self._unwritten.discard(name)
        root = self._root.get(name, name)
        first = self._buffers.get(root)
        if first is None:
            return
        annotation = self._annotation.get(name)
        value = made._replace(
            name=root, shape=first.shape, dtype=first.dtype, annotation=annotation
        )
        if first.operators:
            self._last[root] = value
        else:
            self._buffers[root] = value._replace(annotation=annotation or first.annotation)

    def _names(self, value: ast.expr) -> list[str]:
        return [
            node.id
            for node in ast.walk(value)
            if isinstance(node, ast.Name)
            and (node.id in self._root or node.id in self._dtypes or node.id in self._arguments)
        ]

    def _storage(self, value: ast.expr) -> str | None:
        """Return the buffer or argument whose storage an expression names.

        None for any other expression.
        """
        if isinstance(value, ast.Call) and value.args:
            return self._storage(value.args[0])
        if isinstance(value, ast.Name):
            return self._root.get(value.id, value.id if value.id in self._arguments else None)
        return None

    def _words(self, line: int, function: str) -> tuple[str, tuple[str, ...]]:
        """Return a kernel's ATen operators and source nodes.

        Source nodes are the operators' names in the program's graph.

        An ATen kernel is one operator. A comment before a fused kernel names all of its operators.
        """
        operators, sources = "", ()
        for comment in reversed(self._lines[max(0, line - 4) : line]):
            found = _SOURCES.search(comment)
            if found:
                sources = tuple(found[1].split(", "))
                names = [one.rpartition(".")[2] for one in _ATEN.findall(comment)[0].split(", ")]
                kept = [one for one in dict.fromkeys(names) if one and one not in _VIEWS]
                operators = "_".join((kept or names)[-_MAX_OPERATORS:])
                break
        if not function.endswith(".run"):  # `extern_kernels.mm`, `torch.ops.aten.mm.default`
            parts = function.split(".")
            operators = parts[-2] if len(parts) > 2 else parts[-1]
        return operators, sources


def _with_form(buffer: Buffer) -> Buffer:
    annotation = buffer.annotation
    if buffer.shape or annotation is None or not annotation.dtype:
        return buffer
    return buffer._replace(shape=tuple(annotation.shape.split()), dtype=annotation.dtype)


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.With, ast.If, ast.For, ast.Try)):
            yield from _flat(statement.body)
        elif not isinstance(statement, ast.FunctionDef):
            yield statement


def _extents(shape: ast.expr) -> tuple[str, ...]:
    parts = shape.elts if isinstance(shape, ast.Tuple) else []
    return tuple(ast.unparse(part) for part in parts)
