"""The size of the workspace of a cuDNN convolution.

cuDNN itself reports which kernel it takes (hardware/cudnn), if it is installed. Without a card
it cannot report the partial sums that fill the card's multiprocessors (sums.py). If
it is not installed, only the rules here decide. They were derived from the recordings of an
H100 (torch 2.11, cuDNN 9.19). Then a workspace can be off by one of the copies, and by more
if a kernel transforms.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from nbmem.virtual.hardware.cudnn.problem import FOR_INPUT, FOR_WEIGHT, FORWARD, Tiling
from nbmem.virtual.operators.convolution.sums import (
    ConvolutionProduct,
    counters,
    partial_sums,
    tile_bytes,
)

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.problem import Answer, Problem

ITEMS = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
ALIGNMENT, DESCRIPTOR = 16, 131
"""Bytes beyond the copies, to align them; and what cuDNN adds to Hopper's own kernels without a
card, where it does not know whether their clusters are queued (sums.py)."""
DIRECT = 0
"""Bytes of a kernel that reads the contiguous format itself: none, seldom 272 to 464."""
VECTOR = 16
"""Bytes that the rows of a tensor must be a multiple of for such a kernel to load them."""
# Multiply-adds for each element moved, from which copying into the faster format pays:
# - direct at 341 (forward 409), copied at 409 (forward 682) in resnet50, deeplabv3, densenet121;
# - half types: direct at 204, copied at 341 (resnet50_b64_sgdm_ampbf16).
COPYING_PAYS = 375
COPYING_PAYS_FORWARD = 550
COPYING_PAYS_HALF = 270
COPYING_PAYS_UNALIGNED = 105
IMAGE = 256
"""Positions up to which forward copies as gradients do if rows are not aligned (7x7 and 13x13:
mobilenet_v3_large, shufflenet, squeezenet1_1). Larger ones copy sooner (inception_v3, 17x17)."""
# How many times larger than the copies the results of single images may be. Up to once they are
# used (deeplabv3), from four times on they are not (inception_v3). In between they are used unless
# the copies' product fills the card (resnet50_b32 against resnet152_b16: 1024 to 512, 14x14).
SINGLE_IMAGES = 1.0
SINGLE_IMAGES_MOST = 3.3
FILLED = 0.6
TILE = 128
"""Rows and columns of the usual tile of a weight gradient."""
WHOLE_TERMS = 1000
"""Terms of a partial sum, below which tiles are halved instead (resnet152_b16, 128 to 128)."""
FEW_CHANNELS = 4
DEPTHWISE_CHANNELS, DEPTHWISE_PARTS = 32, 8
TRANSFORMED_SIDE, TRANSFORMED_CHANNELS, LEAST_TRANSFORMED = 32, 64, 16


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A convolution in bytes and elements.

    Attributes:
        source: Bytes of the input.
        weight: Bytes of the weights.
        result: Bytes of the output.
        item: Bytes of one element.
        dtype: Type of the elements.
        images: Rows of the batch.
        positions: Positions of one output image.
        inputs: Channels of the input.
        outputs: Channels of the output.
        window: Elements of the window.
        strided: Whether the window skips positions.
        groups: Groups of channels.
        pads: Whether the copies' channels are filled up to whole vectors: in three dimensions, as
            cuDNN's replies show (tests/oracle); the H100's runs have none.
    """

    source: int
    weight: int
    result: int
    item: int
    dtype: str
    images: int
    positions: int
    inputs: int
    outputs: int
    window: int
    strided: bool
    groups: int
    pads: bool

    @classmethod
    def of(cls, problem: Problem) -> ConvolutionShape:
        """Create the shape of a problem."""
        item = ITEMS[problem.dtype]
        x, w, y = problem.source[0], problem.weight[0], problem.result[0]
        return cls(
            source=prod(x) * item,
            weight=prod(w) * item,
            result=prod(y) * item,
            item=item,
            dtype=problem.dtype,
            images=x[0],
            positions=prod(y[2:]),
            inputs=x[1],
            outputs=y[1],
            window=prod(w[2:]),
            strided=max(problem.stride) > 1,
            groups=x[1] // w[1],
            pads=len(problem.stride) > 2,
        )

    @property
    def plain(self) -> bool:
        """True for a matrix product on the contiguous format."""
        return self.window == 1 and not self.strided and self.groups == 1

    @property
    def terms(self) -> int:
        """Products that are added up for one element of the weight's gradient."""
        return self.images * self.positions

    def product(self, kind: str) -> ConvolutionProduct:
        """Return the matrix product that one of the three kernels computes."""
        if kind == FOR_WEIGHT:
            sizes = self.outputs, self.inputs, self.window, self.terms
        elif kind == FORWARD:
            sizes = self.terms, self.outputs, 1, self.inputs * self.window
        else:
            rows = self.source // (self.inputs * self.item)
            sizes = rows, self.inputs, 1, self.outputs * self.window
        return ConvolutionProduct(*sizes, self.item, self.dtype)

    @property
    def aligned(self) -> bool:
        """True if rows of the contiguous format can be loaded in vectors."""
        return self.positions * self.item % VECTOR == 0

    @property
    def copies(self) -> int:
        """Bytes of channels-last copies of input, weight and result.

        A 1x1 weight has the same layout in both formats, and no copy.
        """
        return self._copied(VECTOR // self.item if self.pads else 1) + ALIGNMENT

    def is_filled_up(self, answer: Answer) -> bool:
        """Return whether cuDNN fills the copies' channels up to whole vectors.

        cuDNN reports it for other numbers of channels from 9.24 on, and on Blackwell
        (tests/oracle).
        """
        vector = VECTOR // self.item
        uneven = self.inputs % vector or self.outputs % vector
        return bool(uneven) and answer.nbytes == self._copied(vector) + ALIGNMENT

    def _copied(self, vector: int) -> int:
        """Return the bytes of copies with channels in multiples of `vector`."""
        weight = self.weight if self.window > 1 else 0
        inputs, outputs = (ceil(n / vector) * vector for n in (self.inputs, self.outputs))
        source = self.source // self.inputs * inputs
        result = self.result // self.outputs * outputs
        return source + result + weight // (self.inputs * self.outputs) * inputs * outputs


def nbytes(problem: Problem, answer: Answer | None, card: Card, *, last: bool) -> int:
    """Return the bytes of the workspace.

    Args:
        problem: The convolution.
        answer: cuDNN's choice; None: cuDNN has no reply.
        card: The card on which it runs.
        last: Whether the tensors are channels-last already.
    """
    shape = ConvolutionShape.of(problem)
    if last and shape.item == 2 and shape.groups == shape.inputs == shape.outputs:
        return _depthwise_half(shape, problem.kind, answer)
    bare = shape.groups > 1 or shape.positions == 1
    if answer is not None:
        copies = answer.nbytes if bare else 0 if last else shape.copies
        return _nbytes_from_cudnn(shape, problem.kind, answer, copies, card)
    if bare or last:
        return 0
    if problem.kind == FOR_WEIGHT:
        return _for_weight(shape, card)
    if shape.plain:
        return shape.copies if _copied(shape, problem.kind) else DIRECT
    return 0 if _few_channels(shape) else shape.copies


def every(problem: Problem, answers: tuple[Answer, ...], card: Card) -> tuple[int, ...]:
    """Return the bytes of the workspaces of all kernels that cuDNN names."""
    shape = ConvolutionShape.of(problem)
    return tuple(
        _nbytes_from_cudnn(shape, problem.kind, answer, answer.nbytes, card) for answer in answers
    )


def may_transform(problem: Problem) -> bool:
    """Return whether cuDNN may take a Fourier transform.

    A transform can take ten times the tensors' bytes. The rule was read from cuDNN 9.19's
    choices for 16,545 kernels in float32 on an H100. Batches were of 1 to 256, images of 4 to
    224 and windows of 1 to 7, with up to 512 channels. It takes a transform in 324 cases, in
    184 of them with more than the copies and 16 MiB. Of these 184, 176 are as here: without a
    stride, and from 16 channels on. With 3x3 there are at most 64 channels and 32 positions a
    side, with larger windows twice that.
    """
    outputs, inputs, *window = problem.weight[0]
    plain = problem.dtype == "float32" and max(problem.stride) == 1 == max(problem.dilation)
    larger = 2 if prod(window) > 9 else 1
    few = inputs >= LEAST_TRANSFORMED and outputs <= larger * TRANSFORMED_CHANNELS
    small = max(problem.source[0][2:]) <= larger * TRANSFORMED_SIDE
    return plain and few and small and prod(window) > 1


def _depthwise_half(shape: ConvolutionShape, kind: str, answer: Answer | None) -> int:
    """Return the workspace of a depthwise kernel for half types.

    cuDNN has a kernel for channels-last tensors that it names only on a card. The kernel adds
    up the weight's gradient from parts of each image, whatever the image's size: layers of
    mnasnet1_0 and the grid of tests/card.
    """
    if kind == FOR_WEIGHT:
        channels = ceil(shape.inputs / DEPTHWISE_CHANNELS) * DEPTHWISE_CHANNELS
        return channels * shape.window * 4 * shape.images * DEPTHWISE_PARTS
    return 0 if answer is None or kind == FORWARD else answer.nbytes


def _nbytes_from_cudnn(
    shape: ConvolutionShape, kind: str, answer: Answer, copies: int, card: Card
) -> int:
    """Return the workspace that cuDNN names, with partial sums.

    For Hopper's own kernels cuDNN reports only the copies.
    """
    if answer.tiling is None or shape.is_filled_up(answer):
        return answer.nbytes
    return min(_taken(answer), copies) + _sums(shape, kind, answer.tiling, card)


def _taken(answer: Answer) -> int:
    """Return the workspace that cuDNN names, without its descriptor.

    cuDNN adds a descriptor if it has no card.
    """
    described = answer.tiling is not None and answer.nbytes % VECTOR == DESCRIPTOR % VECTOR
    return answer.nbytes - DESCRIPTOR if described else answer.nbytes


def _sums(shape: ConvolutionShape, kind: str, tiling: Tiling, card: Card) -> int:
    product = shape.product(kind)
    # The gradient of what a stride skipped is made of several products, one after another.
    queued = True if kind == FOR_INPUT and shape.strided else None
    return partial_sums(product, tiling, card) + counters(product, tiling, card, queued=queued)


def _few_channels(shape: ConvolutionShape) -> bool:
    """Return whether the first layer of a network is read as it is.

    Windows of 3x3 and patches are; 7x7 is copied.
    """
    return shape.inputs <= FEW_CHANNELS and shape.window != 49


def _copied(shape: ConvolutionShape, kind: str) -> bool:
    """Return whether a 1x1 product runs on copies."""
    reuse = shape.inputs * shape.outputs / (shape.inputs + shape.outputs)
    if shape.item == 2:
        return reuse > COPYING_PAYS_HALF
    if kind == FORWARD and shape.aligned:
        return reuse > COPYING_PAYS_FORWARD
    large = kind == FORWARD and shape.positions > IMAGE
    return reuse > (COPYING_PAYS_UNALIGNED if large else COPYING_PAYS)


def _for_weight(shape: ConvolutionShape, card: Card) -> int:
    tiling = _usual_tiling(shape, card)
    if shape.plain:
        # A product for each image, and then their sum. Two in three of those recorded have no
        # descriptors beside; with them, the size would miss free blocks that it just fits.
        single = shape.images * shape.inputs * shape.outputs * 4
        if single <= _most_single(shape, card) * shape.copies:
            return single
    elif _few_channels(shape):
        return 0
    return shape.copies + _sums(shape, FOR_WEIGHT, tiling, card)


def _most_single(shape: ConvolutionShape, card: Card) -> float:
    """Return the most that the results of single images may take.

    The limit is a multiple of the copies' bytes.
    """
    if shape.item == 2:
        return SINGLE_IMAGES
    product, tiling = shape.product(FOR_WEIGHT), _usual_tiling(shape, card)
    tiles, parts = product.parts(tiling, card)
    busy = max(product.tiles(tiling), tiles * parts) * tile_bytes(tiling)
    filled = busy >= FILLED * card.processors * tile_bytes(Tiling(TILE, TILE))
    return SINGLE_IMAGES if filled and shape.aligned else SINGLE_IMAGES_MOST


def _usual_tiling(shape: ConvolutionShape, card: Card) -> Tiling:
    """Return the usual tiling of weight gradients of this kind.

    This is used if cuDNN has no reply.
    """
    if min(shape.outputs, shape.inputs * shape.window) <= TILE // 2:
        return Tiling(TILE // 2, TILE // 2)
    if shape.item == 2:
        return Tiling(TILE, TILE // 2, cluster=(2, 4))
    whole = Tiling(TILE, TILE)
    tiles = shape.product(FOR_WEIGHT).tiles(whole)
    parts = card.processors // tiles
    if parts and (parts == 1 or shape.terms < WHOLE_TERMS * parts):
        return Tiling(TILE, TILE // 2)
    return whole if tiles < 2 * card.processors else Tiling(TILE, TILE, splits=False)
