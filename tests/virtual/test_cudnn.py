"""Kernels that cuDNN chooses, and rules where it is missing."""

import contextlib
import json
import platform
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest

pytest.importorskip("torch", reason="the virtual card answers torch")

from nbmem.virtual.card_names import find_card
from nbmem.virtual.cards import CARDS
from nbmem.virtual.hardware.cudnn import client
from nbmem.virtual.hardware.cudnn.problem import Answer, Problem, Tiling
from nbmem.virtual.operators.convolution import workspace as convolution_workspace
from nbmem.virtual.operators.convolution.sums import ConvolutionProduct, partial_sums

H100 = find_card("H100")


def dense(*size):
    strides, step = [], 1
    for count in reversed(size):
        strides.append(step)
        step *= count
    return size, tuple(reversed(strides))


def problem(kind, source, weight, result, padding):
    sizes = (dense(*source), dense(*weight), dense(*result))
    return Problem(kind, "float32", *sizes, padding, (1, 1), (1, 1), tf32=True, deterministic=False)


SMALL = problem("forward", (2, 8, 8, 8), (8, 8, 3, 3), (2, 8, 8, 8), (1, 1))


def cudnn_version():
    """Return the installed cuDNN's version; (0, 0) without one."""
    for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return tuple(map(int, metadata.version(name).split(".")[:2]))
    return 0, 0


@pytest.fixture
def asked():
    made = client.CudnnClient(H100)
    yield made
    made.close()


@pytest.fixture
def real(asked):
    """Provide the cuDNN of a card's recordings."""
    if client.library_path() is None:
        pytest.skip("cuDNN is not installed")
    if not (9, 10) <= cudnn_version() < (9, 21):
        pytest.skip("recorded with cuDNN 9.19: older ones do not answer, newer ones choose anew")
    return asked


def test_without_cudnn_there_is_no_answer(monkeypatch, asked):
    monkeypatch.setattr(client, "library_path", lambda: None)
    assert asked.first_kernel(SMALL) is None


def test_a_library_that_does_not_load_is_no_answer_and_no_error(monkeypatch, asked, tmp_path):
    broken = tmp_path / "cudnn" / "lib" / "libcudnn.so.9"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no library")
    monkeypatch.setattr(client, "library_path", lambda: broken)
    assert asked.first_kernel(SMALL) is None
    assert asked.first_kernel(SMALL) is None


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.key)
def test_every_card_can_be_described(card):
    facts = json.loads(client.device_properties(card))
    assert facts["deviceVer"] == 100 * card.capability[0] + 10 * card.capability[1]


@pytest.mark.parametrize(
    ("asked_for", "recorded"),
    [
        # Only the input is copied (resnet50_b32_sgdm, vgg16_b32_sgdm).
        (problem("forward", (32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56), (1, 1)), 25837584),
        (
            problem("forward", (32, 64, 112, 112), (128, 64, 3, 3), (32, 128, 112, 112), (1, 1)),
            103055376,
        ),
        # A product split by cuDNN itself (inception_v3_b32_rmsprop).
        (
            problem("weight", (32, 192, 17, 17), (192, 192, 1, 7), (32, 192, 17, 17), (0, 3)),
            20398224,
        ),
    ],
)
def test_cudnn_answers_what_a_card_took(real, asked_for, recorded):
    found = real.first_kernel(asked_for)
    assert found.nbytes == recorded
    assert found.tiling is None


@pytest.mark.parametrize(
    ("asked_for", "recorded"),
    [  # of yunjey's residual network and Morvan's 502_GPU.py, as an H100 took them
        (
            problem("weight", (100, 16, 32, 32), (16, 16, 3, 3), (100, 16, 32, 32), (1, 1)),
            114_688_000,
        ),
        (
            problem("forward", (2000, 16, 14, 14), (32, 16, 5, 5), (2000, 32, 14, 14), (2, 2)),
            557_107_200,
        ),
    ],
)
def test_transforms_are_among_the_kernels(real, asked_for, recorded):
    """They are products of cuBLASLt, which makes no handle without a card."""
    assert real.first_kernel(asked_for).nbytes == recorded
    assert recorded in [answer.nbytes for answer in real.all_kernels(asked_for)]


def test_a_library_s_function_is_answered_by_another_in_its_process():
    """As the worker does with cuBLASLt, which no test's environment has."""
    code = """
import ctypes
from nbmem.virtual.hardware.cudnn import cublaslt
library = ctypes.CDLL("libm.so.6")
function = library.lrint
function.argtypes, function.restype = (ctypes.c_double,), ctypes.c_int
before = function(2.0)
jump = cublaslt._jump(lambda *_: 7, (ctypes.c_double,))
assert cublaslt._overwrite(cublaslt._address(function), jump)
print(before, function(2.0))
"""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        pytest.skip("the jump is x86-64's, as cuDNN's packages for Linux are")
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["2", "7"]


@pytest.mark.parametrize(
    ("kind", "dtype", "rows", "channels", "side", "recorded"),
    [
        ("weight", "float32", 8, (64, 2), 256, 142_734_480),  # unet_b8_adam
        ("weight", "float32", 8, (64, 64), 80, 26_869_904),  # deeplabv3_resnet50_b8_sgdm
        # resnet152_b16_sgdm, and below torchvision's mobilenet_v2 and mnasnet1_0 in bfloat16: a
        # product for each image, then their sum.
        ("weight", "float32", 16, (64, 64), 56, 262_144),
        ("weight", "bfloat16", 32, (320, 1280), 7, 52_428_800),
        ("weight", "bfloat16", 32, (192, 1152), 7, 28_311_552),
        ("forward", "bfloat16", 32, (960, 320), 7, 4_014_096),
        ("forward", "bfloat16", 32, (96, 576), 14, 0),
    ],
)
def test_windows_of_one_are_products(real, kind, dtype, rows, channels, side, recorded):  # noqa: PLR0913, PLR0917
    """cuDNN says where it copies and where cuBLASLt multiplies the contiguous format."""
    inner, outer = channels
    sizes = (rows, inner, side, side), (outer, inner, 1, 1), (rows, outer, side, side)
    product = replace(problem(kind, *sizes, (0, 0)), dtype=dtype)
    found = convolution_workspace.nbytes(product, real.first_kernel(product), H100, last=False)
    assert found == pytest.approx(recorded, abs=512)


@pytest.mark.parametrize(
    ("product", "tiling", "tiles"),
    [  # the last: partial sums beyond the copies in the H100's workspaces, in tiles
        (
            ConvolutionProduct(256, 256, 9, 6272, 4),
            Tiling(),
            108,
        ),  # resnet50_b32_sgdm: 36 tiles, 3 parts
        (
            ConvolutionProduct(512, 512, 9, 1568, 4),
            Tiling(),
            84,
        ),  # the same: 12 of 144 are left, 7 parts
        (ConvolutionProduct(512, 512, 9, 784, 4), Tiling(), 24),  # resnet152_b16_sgdm: 12, 2
        (
            ConvolutionProduct(128, 128, 9, 12800, 4),
            Tiling(128, 64, (1, 2)),
            126,
        ),  # deeplabv3_resnet50_b8_sgdm
        (
            ConvolutionProduct(64, 128, 9, 524288, 4),
            Tiling(64, 128, (1, 2)),
            130,
        ),  # unet_b8_adam: 5 pairs, 13
        (
            ConvolutionProduct(2048, 1024, 1, 4608, 4),
            Tiling(64, 256, (4, 1)),
            120,
        ),  # the same, forward
        (
            ConvolutionProduct(32768, 128, 1, 2304, 4),
            Tiling(256, 128, (4, 1)),
            120,
        ),  # the same, for the input
        (ConvolutionProduct(448, 2048, 1, 2048, 4), Tiling(splits=False), 0),
    ],
)
def test_partial_sums_fill_the_card(product, tiling, tiles):
    assert partial_sums(product, tiling, H100) == tiles * tiling.rows * tiling.columns * 4


@pytest.mark.parametrize(
    ("sizes", "tiling", "in_bfloat16", "in_float16"),
    [  # as an H100 divided the gradients of weights of torchvision's networks: clusters, and parts
        # densenet121_b16, 32 to 128, and efficientnet_v2_s_b16, 64 to 256: 6 would fill the card.
        ((32, 128, 9, 12544), Tiling(64, 64, (1, 3)), (6, 1), (6, 6)),
        ((256, 64, 9, 12544), Tiling(128, 64, (1, 3)), (6, 2), (6, 6)),
        ((128, 128, 9, 25088), Tiling(128, 64, (1, 3)), (6, 4), (6, 6)),
        # googlenet_b16 and shufflenet_v2_x1_0_b32: a round of sums costs more than it saves.
        ((192, 480, 1, 3136), Tiling(128, 64, (2, 4)), (2, 1), (2, 4)),
        ((232, 232, 1, 6272), Tiling(128, 64, (2, 4)), (1, 1), (1, 8)),
        # resnet101_b8, and squeezenet1_1_b32: as many as there is room for.
        ((64, 64, 9, 25088), Tiling(64, 64, (1, 3)), (3, 13), (3, 13)),
        ((128, 32, 1, 23328), Tiling(128, 64, (2, 4)), (1, 15), (1, 15)),
        # efficientnet_v2_s_b16, 48 to 192: two elements of the window share a tile.
        ((192, 48, 9, 12544), Tiling(128, 128, (1, 5)), (2, 11), (2, 11)),
        # wide_resnet50_2_b16, 1024 to 1024.
        ((1024, 1024, 1, 3136), Tiling(128, 128, (1, 2)), (32, 1), (32, 2)),
    ],
)
def test_sums_of_half_types_are_divided_where_that_is_shorter(
    sizes, tiling, in_bfloat16, in_float16
):
    size = tiling.cluster[0] * tiling.cluster[1]
    for dtype, (clusters, parts) in (("bfloat16", in_bfloat16), ("float16", in_float16)):
        assert ConvolutionProduct(*sizes, 2, dtype).parts(tiling, H100) == (clusters * size, parts)


def test_channels_last_kernels_keep_partial_sums_beside_their_descriptor():
    """As in convnext_tiny_b32_adamw, 192 to 384: 64 tiles of the last round, in 2 parts."""
    asked = Problem(
        "forward",
        "float32",
        *(dense(32, 192, 28, 28), dense(384, 192, 2, 2), dense(32, 384, 14, 14)),
        padding=(0, 0),
        stride=(2, 2),
        dilation=(1, 1),
        tf32=True,
        deterministic=False,
    )
    answer = Answer(131, Tiling(cluster=(1, 2)))
    found = convolution_workspace.nbytes(asked, answer, H100, last=True)
    assert found == pytest.approx(8_389_023, abs=512)


def square(kind, dtype, images, channels, side, kernel=3, stride=1, groups=1):  # noqa: PLR0913, PLR0917 - a convolution has as many
    """Make a convolution that keeps its channels."""
    half = side // stride
    sizes = (images, channels, side, side), (channels, channels // groups, kernel, kernel)
    tensors = (*(dense(*size) for size in sizes), dense(images, channels, half, half))
    each = (kernel // 2,) * 2, (stride,) * 2, (1, 1)
    return Problem(kind, dtype, *tensors, *each, tf32=True, deterministic=False)


@pytest.mark.parametrize(
    ("asked_for", "tiling", "last", "answered", "measured"),
    [  # on an H100 with cuDNN 9.19 (tests/card)
        # 9 tiles in 14 parts, 18 in 7, 32 in 3: a counter for each sum of two.
        (square("weight", "float32", 8, 64, 56), Tiling(64, 64), False, 13287635, 15057575),
        (
            square("weight", "float32", 8, 128, 56, stride=2),
            Tiling(128, 64, (1, 2)),
            True,
            0,
            4129431,
        ),
        (
            square("input", "float32", 8, 512, 14),
            Tiling(256, 128, (4, 1)),
            False,
            15859728,
            28443183,
        ),
        # 98 clusters where 30 run at once take turns, and keep the last ones' sums beside.
        (
            square("forward", "float32", 32, 256, 28),
            Tiling(64, 256, (4, 1)),
            True,
            1048771,
            6292003,
        ),
        (
            square("forward", "bfloat16", 32, 64, 56),
            Tiling(64, 64, (8, 1), splits=False),
            True,
            131,
            131,
        ),
        # Fewer do not; without sums to keep the copies stand alone, or nothing does.
        (
            square("forward", "bfloat16", 8, 512, 14),
            Tiling(128, 64, (1, 8)),
            False,
            7930003,
            7929872,
        ),
        (
            square("forward", "float32", 8, 256, 28, groups=32),
            Tiling(128, 128, (2, 1), splits=False),
            True,
            131,
            0,
        ),
        # What a stride skipped is made of several products.
        (
            square("input", "float32", 1, 128, 56, stride=2),
            Tiling(128, 64, (2, 2), splits=False),
            True,
            131,
            131,
        ),
        # Depthwise in half types there is a kernel of which cuDNN says nothing without a card.
        (square("weight", "bfloat16", 32, 96, 112, stride=2, groups=96), None, True, 0, 884736),
        (square("weight", "float16", 1, 96, 56, 7, groups=96), None, True, 0, 150528),
        (square("forward", "float16", 8, 96, 112, stride=2, groups=96), None, True, 1934, 0),
    ],
)
def test_a_card_takes_counters_for_its_sums_and_its_turns(
    asked_for, tiling, last, answered, measured
):
    found = convolution_workspace.nbytes(asked_for, Answer(answered, tiling), H100, last=last)
    assert found == measured


@pytest.mark.parametrize(
    ("kind", "outputs", "answered", "expected"),
    [  # nn.Conv3d's samples in the oracle: channels of 5 are filled up to 8
        ("input", 5, 5776, 5776),
        ("weight", 5, 5776, 5776),
        ("weight", 8, 5776, 5776),
        ("weight", 5, 99_999, 5776),  # the copies alone of what depends on the card
    ],
)
def test_copies_in_three_dimensions_have_whole_vectors_of_channels(
    kind, outputs, answered, expected
):
    sizes = dense(2, 4, 3, 4, 5), dense(outputs, 4, 3, 3, 3), dense(2, outputs, 1, 2, 3)
    spatial = {"padding": (0, 0, 0), "stride": (1, 1, 1), "dilation": (1, 1, 1)}
    asked_for = Problem(kind, "float32", *sizes, **spatial, tf32=True, deterministic=False)
    answer = Answer(answered, Tiling(64, 64))
    assert convolution_workspace.nbytes(asked_for, answer, H100, last=False) == expected
