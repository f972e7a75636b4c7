"""The backend API of cuDNN through ctypes: descriptors, heuristics, plans.

Numbers are those of cudnn_graph.h, which are stable within cuDNN 9.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbmem.virtual.hardware.cudnn.problem import Problem, Tiling

LEAST_VERSION = 90800
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_DATA_TYPE, _INT64, _FLOAT, _DOUBLE, _MODE, _HEURISTIC, _KNOB, _NOTE = 1, 3, 4, 5, 7, 8, 9, 11
_DESCRIPTOR, _CHAR = 15, 24
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN, _CHOICE, _GRAPH, _TENSOR, _PROPERTIES = (
    1, 2, 3, 4, 5, 7, 15, 17, 38,
)  # fmt: skip
_OPERATIONS = {
    # descriptor, x, w, y, convolution, alpha, beta
    "forward": (10, 704, 703, 705, 702, 700, 701),
    "input": (12, 710, 709, 711, 708, 706, 707),
    "weight": (11, 716, 715, 717, 714, 712, 713),
}
_CROSS_CORRELATION = 1
_MODES = (0, 2)
"""Instant heuristics, then the fallback list, as torch queries them.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cudnn/Conv_v8.cpp
(get_generator_sources)
"""
_DOWN_CONVERTS, _TENSOR_CORE, _NONDETERMINISTIC = 1, 0, 4
_TILE, _WORKSPACE, _CLUSTER_ROWS, _CLUSTER_COLUMNS = 2, 25, 27, 28
_TILES = {1: (128, 64), 3: (256, 128), 5: (64, 64), 7: (64, 128), 9: (64, 256)}
"""Rows and columns by a tile's number, as recorded workspaces show them; others are taken for 0,
which is 128 x 128."""
_MOST_KNOBS = 32
_ALIGNMENT = 16


class UnsupportedError(Exception):
    """A refusal of a descriptor by cuDNN; the next configuration may do."""


class Library:
    """A loaded libcudnn."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        self.version = int(self._lib.cudnnGetVersion())

    def new(self, kind: int) -> Descriptor:
        """Create a descriptor that is not filled in yet."""
        handle = ctypes.c_void_p()
        if self._lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(handle)):
            raise UnsupportedError
        return Descriptor(self._lib, handle)

    def properties(self, facts: Mapping[str, Any]) -> Descriptor:
        """Create the device properties descriptor of a card."""
        text = json.dumps(facts).encode()
        made = self.new(_PROPERTIES)
        made.set(2702, _CHAR, ctypes.create_string_buffer(text), len(text))
        return made.finish()

    def graph(self, problem: Problem) -> Descriptor:
        """Create an operation graph of one convolution."""
        code, x, w, y, convolution, alpha, beta = _OPERATIONS[problem.kind]
        double = problem.dtype == "float64"
        shape = self.new(_CONVOLUTION)
        shape.set_enum(100, _DATA_TYPE, 1 if double else 0)
        shape.set_enum(101, _MODE, _CROSS_CORRELATION)
        shape.set_int64s(106, (len(problem.padding),))
        shape.set_int64s(103, problem.stride)
        shape.set_int64s(105, problem.padding)
        shape.set_int64s(104, problem.padding)
        shape.set_int64s(102, problem.dilation)
        operation = self.new(code)
        operation.set_descriptor(convolution, shape.finish())
        for attribute, name, (size, strides) in (
            (x, "x", problem.source), (w, "w", problem.weight), (y, "y", problem.result),
        ):  # fmt: skip
            operation.set_descriptor(attribute, self._tensor(name, size, strides, problem.dtype))
        scalar = ctypes.c_double if double else ctypes.c_float
        kind = _DOUBLE if double else _FLOAT
        operation.set(alpha, kind, ctypes.byref(scalar(1.0)), 1)
        operation.set(beta, kind, ctypes.byref(scalar(0.0)), 1)
        graph = self.new(_GRAPH)
        graph.set_descriptor(801, operation.finish())
        return graph.finish()

    def _tensor(
        self, name: str, size: Sequence[int], strides: Sequence[int], dtype: str
    ) -> Descriptor:
        tensor = self.new(_TENSOR)
        tensor.set_enum(901, _DATA_TYPE, _TYPES[dtype])
        tensor.set_int64s(902, size)
        tensor.set_int64s(903, strides)
        tensor.set_int64s(906, (ord(name),))
        tensor.set_int64s(900, (_ALIGNMENT,))
        return tensor.finish()

    def configurations(self, graph: Descriptor, card: Descriptor) -> Iterator[Descriptor]:
        """Yield engine configurations in the order in which torch tries them."""
        for mode in _MODES:
            heuristics = self.new(_HEURISTICS)
            heuristics.set_descriptor(201, graph)
            heuristics.set_enum(200, _HEURISTIC, mode)
            heuristics.set_descriptor(204, card)
            yield from heuristics.finish().children(202, self, _CONFIG, heuristics.count(202))

    def workspace(self, config: Descriptor, card: Descriptor) -> int:
        """Return the workspace bytes of a configuration's plan."""
        plan = self.new(_PLAN)
        plan.set_descriptor(401, config)
        plan.set_descriptor(407, card)
        return plan.finish().read(402, _INT64, 1)[0]

    def engine(self, config: Descriptor) -> Descriptor:
        """Return the engine of a configuration."""
        return config.children(300, self, _ENGINE, 1)[0]

    def notes(self, engine: Descriptor) -> list[int]:
        """Return an engine's numerical notes."""
        return engine.read(1303, _NOTE, 32, ctypes.c_int)

    def tiling(self, config: Descriptor) -> Tiling | None:
        """Return how a cluster kernel tiles its result; None for other kernels."""
        chosen = {
            choice.read(600, _KNOB, 1, ctypes.c_int)[0]: choice.read(601, _INT64, 1)[0]
            for choice in config.children(302, self, _CHOICE, _MOST_KNOBS)
        }
        if _CLUSTER_ROWS not in chosen or _CLUSTER_COLUMNS not in chosen:
            return None
        cluster = chosen[_CLUSTER_ROWS], chosen[_CLUSTER_COLUMNS]
        tile = _TILES.get(chosen.get(_TILE, 0), (128, 128))
        return Tiling(*tile, cluster=cluster, splits=chosen.get(_WORKSPACE) == 0)

    def allowed(self, engine: Descriptor, problem: Problem) -> bool:
        """Return whether torch's filterEngineConfigs accepts an engine."""
        notes = self.notes(engine)
        if problem.deterministic and _NONDETERMINISTIC in notes:
            return False
        if problem.dtype == "float32" or not problem.tf32:
            if _DOWN_CONVERTS in notes:
                return False
            return problem.tf32 or _TENSOR_CORE not in notes
        return True


class Descriptor:
    """A descriptor of the backend API; destroyed with its Python object."""

    __slots__ = ("_keeps", "_lib", "handle")

    def __init__(self, lib: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._lib = lib
        self.handle = handle
        self._keeps: list[Descriptor] = []

    def __del__(self) -> None:
        self._lib.cudnnBackendDestroyDescriptor(self.handle)

    def set(self, attribute: int, kind: int, values: Any, count: int) -> None:
        """Set an attribute."""
        if self._lib.cudnnBackendSetAttribute(
            self.handle, attribute, kind, ctypes.c_int64(count), values
        ):
            raise UnsupportedError

    def set_enum(self, attribute: int, kind: int, value: int) -> None:
        """Set an enum attribute."""
        self.set(attribute, kind, ctypes.byref(ctypes.c_int(value)), 1)

    def set_int64s(self, attribute: int, values: Sequence[int]) -> None:
        """Set an attribute that consists of 64-bit integers."""
        self.set(attribute, _INT64, (ctypes.c_int64 * len(values))(*values), len(values))

    def set_descriptor(self, attribute: int, other: Descriptor) -> None:
        """Set an attribute to another descriptor, which is kept alive."""
        self._keeps.append(other)
        self.set(attribute, _DESCRIPTOR, (ctypes.c_void_p * 1)(other.handle), 1)

    def finish(self) -> Descriptor:
        """Finalize the descriptor and return it."""
        if self._lib.cudnnBackendFinalize(self.handle):
            raise UnsupportedError
        return self

    def _get(self, attribute: int, kind: int, count: int, values: Any) -> int:
        found = ctypes.c_int64()
        if self._lib.cudnnBackendGetAttribute(
            self.handle, attribute, kind, ctypes.c_int64(count), ctypes.byref(found), values
        ):
            raise UnsupportedError
        return found.value

    def count(self, attribute: int) -> int:
        """Return how many descriptors an attribute holds."""
        return self._get(attribute, _DESCRIPTOR, 0, None)

    def read(
        self, attribute: int, kind: int, count: int, element: Any = ctypes.c_int64
    ) -> list[int]:
        """Return the values of an attribute."""
        values = (element * count)()
        found = self._get(attribute, kind, count, values)
        return list(values)[:found]

    def children(self, attribute: int, library: Library, kind: int, most: int) -> list[Descriptor]:
        """Return the descriptors of an attribute, at most `most`."""
        made = [library.new(kind) for _ in range(most)]
        values = (ctypes.c_void_p * most)(*[child.handle.value for child in made])
        return made[: self._get(attribute, _DESCRIPTOR, most, values)]
