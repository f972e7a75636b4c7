"""Sizes of cuDNN's recurrent layers: reserve and workspace.

https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cudnn/RNN.cpp chooses
the algorithm. cuDNN documents no size. These sizes were found on an H100 with torch 2.11
and 2.13 (docs/questions/measuring.md, part `workspaces`). There 60 networks of 1 to 3
layers in three types agree to the byte. They hold for two recordings of other releases,
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nbmem.core.units import MIB

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.tensors.operator_call import OperatorCall

GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Gates by cuDNN's mode: RNN with ReLU or tanh, LSTM, GRU."""
LSTM, GRU = 2, 3
STANDARD, STATIC, SMALL = range(3)
"""Algorithms: each step by itself; all steps in one kernel; the same for narrow layers."""
_ALIGNMENT, _PART = 256, 32
_OF_PRODUCTS = 8 * MIB
"""For the matrix products of each layer and direction."""
_AT_ONCE = 393_216
"""Elements of the input that a plain cell's standard algorithm has copied at one time."""
_PERSISTENT = {LSTM: 16, GRU: 14}
"""Values that a persistent kernel stores more for each step; a plain cell 10."""


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The sizes of one recurrent call.

    `steps` counts the steps of all sequences together, padded or packed.
    """

    rows: int
    steps: int
    inputs: int
    hidden: int
    width: int
    layers: int
    directions: int
    mode: int
    dropout: float
    dtype: torch.dtype
    packed: bool = False

    @classmethod
    def of(cls, call: OperatorCall) -> RecurrentShape:
        """Read the arguments of _cudnn_rnn or of its backward."""
        source = call.args[0]
        sizes = call.argument("batch_sizes")
        first = call.argument("batch_first")
        if sizes:
            rows, steps = int(sizes[0]), source.size(0)
        else:
            rows = source.size(0 if first else 1)
            steps = source.size(1 if first else 0) * rows
        hidden = int(call.argument("hidden_size"))
        return cls(
            rows=rows,
            steps=steps,
            inputs=source.size(-1),
            hidden=hidden,
            width=int(call.argument("proj_size")) or hidden,
            layers=int(call.argument("num_layers")),
            directions=2 if call.argument("bidirectional") else 1,
            mode=int(call.argument("mode")),
            dropout=float(call.argument("dropout")),
            dtype=source.dtype,
            packed=bool(sizes),
        )

    @property
    def slice(self) -> int:
        """Bytes of one value per row and hidden element of one direction."""
        return self.rows * self.hidden * self.dtype.itemsize

    @property
    def unit(self) -> int:
        """Bytes of one value per step and hidden element, both directions."""
        return self.steps * self.hidden * self.directions * self.dtype.itemsize

    @property
    def reserve(self) -> int:
        """Bytes that backward reads: gates, cells, results and dropout masks.

        An LSTM stores four gates and its cells. A GRU stores its three gates before and after the
        recurrent product. All but the last layer store their results. With dropout there is a bit
        for each result and direction of the next layer.

        For projections it is inferred that a layer's result before the projection is stored, too.
        """
        gates = GATES[self.mode]
        kept = {LSTM: gates + 1, GRU: 2 * gates}.get(self.mode, gates)
        projected = self.width != self.hidden
        units = self.layers * (kept + projected)
        results = (self.layers - 1) * self.unit * self.width // self.hidden
        bits = self.steps * self.width * self.directions // 8 if self.dropout else 0
        masks = (self.layers - 1) * self.directions * _aligned(bits)
        return _aligned(units * self.unit + results) + masks + _ALIGNMENT

    def algorithm(self, card: Card, *, forward: bool = True) -> int:
        """Return cuDNN's algorithm as get_algo of RNN.cpp chooses it.

        For bfloat16 cuDNN has the standard algorithm only.
        """
        if self.width != self.hidden or self.packed or self.dtype is torch.float64:
            return STANDARD
        plain = self.mode not in {LSTM, GRU}
        narrow = 384 if plain else 192
        if not forward:
            narrow = 256 if plain else 128
        if self.hidden <= narrow and card.capability >= (6, 0):
            return STANDARD if self.dtype is torch.bfloat16 else SMALL
        fits = (
            self.dtype is torch.float16
            and self.layers == self.directions == 1
            and self.hidden <= 1024
            and self.hidden % 128 == self.inputs % 128 == 0
        )
        return STATIC if fits and self._persists(card) else STANDARD

    def _persists(self, card: Card) -> bool:
        """Return use_persist_device_heuristics of RNN.cpp."""
        rows, steps = self.rows, self.steps // max(self.rows, 1)
        major, minor = card.capability
        if major == 7:
            often = (rows % 16 == 0 and rows not in {80, 112}) or rows == 8
            least = ((40, 128), (20, 96), (10, 32))
            return minor != 5 and often and any(steps >= s and rows <= r for s, r in least)
        if major < 8 or card.processors < 98 or minor == 6 or self.mode == GRU:
            return False
        few = rows % 8 == 0 and rows <= 128
        return few and (self.mode == LSTM or rows < 96 or self.hidden < 896)

    def workspace(self, algorithm: int, *, training: bool = True) -> int:
        """Return the scratch bytes of one call.

        They are for gates, input, what is between layers, and a copy of the weights.

        For inference the size is known for an LSTM's standard algorithm only, which needs no cells.
        Others are taken to need as much as training.
        """
        gates, item, lanes = GATES[self.mode], self.dtype.itemsize, self.layers * self.directions
        step = self.unit // self.directions
        source = self.steps * self.inputs * item
        found = (gates + 1) * self.unit
        found += self.directions * self.unit if self.layers > 1 else 0
        if self.mode == LSTM:
            found += source
            found -= self.unit if algorithm == STANDARD and not training else 0
        elif self.mode == GRU:
            found += 2 * source
        else:
            most = _AT_ONCE * item if algorithm == STANDARD else 2 * source
            found += self.unit + min(2 * source, most)
        if algorithm != STANDARD:
            found += _PERSISTENT.get(self.mode, 10) * step
        above = (self.layers - 1) * self.directions * self.width
        weights = self.directions * gates * self.hidden * (self.inputs + above)
        weights += lanes * gates * self.hidden * self.width
        found += self._states(algorithm) + weights * item + _ALIGNMENT + _aligned(8 * self.rows)
        return lanes * _OF_PRODUCTS + _aligned(found)

    def _states(self, algorithm: int) -> int:
        """Return the bytes that a workspace keeps of single steps."""
        lanes, both = self.layers * self.directions, self.directions - 1
        if algorithm != STANDARD:
            slices = 8 * lanes + 4 * both if self.mode == LSTM else 6 * (lanes + both)
            return slices * self.slice
        slices = (9 if self.mode == LSTM else 5) * lanes + 12 * both
        steps = 2 * self.rows * self.inputs if self.mode == LSTM and not both else 0
        return slices * self.slice + steps * self.dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _PART) * _PART
