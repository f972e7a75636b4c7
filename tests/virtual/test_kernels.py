"""The kernel table against figures read from the recordings."""

import pytest
import torch

from nbmem import virtual
from nbmem.virtual.card_names import find_card
from nbmem.virtual.operator_model.operator import Launch
from nbmem.virtual.operators import convolution, reduce
from nbmem.virtual.operators.convolution import cudnn_kernels
from nbmem.virtual.operators.layers import loss
from nbmem.virtual.operators.reduce.staging import geometry
from nbmem.virtual.operators.reduce.staging import staging as staging_of
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import spec_of

H100 = find_card("H100")


@pytest.mark.parametrize(
    ("rows", "columns", "staging", "semaphores"),
    [
        (2048, 768, 12_582_912, 24),
        (2048, 3072, 50_331_648, 96),
        (2048, 2304, 37_748_736, 72),
        (4096, 768, 25_165_824, 24),
        (12608, 384, 38_731_776, 12),
    ],
)
def test_gradients_of_biases_are_staged_as_recorded(rows, columns, staging, semaphores):
    shape = geometry(torch.empty(rows, columns, device="meta"), [0])
    assert staging_of(shape, 4, H100) == (staging, semaphores)


def test_a_small_reduction_needs_no_staging():
    shape = geometry(torch.empty(8, 64, device="meta"), [0])
    assert staging_of(shape, 4, H100) == (0, 0)


def workspaces(source, weight, stride, padding):
    """Return the scratch of one convolution and its backward."""
    x, w = (torch.empty(size, device="meta") for size in (source, weight))
    y = torch.nn.functional.conv2d(x, w, None, stride, padding)
    more = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    ahead = OperatorCall(torch.ops.aten.convolution.default, (x, w, *more), {})
    back = OperatorCall(
        torch.ops.aten.convolution_backward.default, (y, x, w, *more, [True, True, False]), {}
    )
    steps = []
    for call, outs in ((ahead, (y,)), (back, (x, w))):
        specs = tuple(spec_of(tuple(t.size()), t.dtype, n) for n, t in enumerate(outs))
        rule = cudnn_kernels.forward if call is ahead else cudnn_kernels.backward
        steps += [s.kernels.nbytes for s in rule(Launch(call, specs, H100)) if s.kernels]
    return steps


@pytest.mark.parametrize(
    ("source", "weight", "stride", "padding", "recorded"),
    [
        ((32, 128, 56, 56), (128, 128, 3, 3), 2, 1, [64815120, 64815251, 73073319]),
        ((32, 256, 28, 28), (256, 256, 3, 3), 2, 1, [34471952, 34472083, 41550431]),
        ((32, 256, 14, 14), (256, 256, 3, 3), 1, 1, [15204368, 15204368, 22282847]),
    ],
)
def test_convolutions_copy_to_channels_last_as_recorded(source, weight, stride, padding, recorded):
    guessed = workspaces(source, weight, stride, padding)
    assert guessed == pytest.approx(recorded, rel=1e-4)


def test_a_traced_programs_convolution_takes_what_a_convolution_takes(gpu):
    x = torch.randn(32, 128, 56, 56, device="cuda")
    weight = torch.randn(128, 128, 3, 3, device="cuda")
    places = (2, 2), (1, 1), (1, 1), False, (0, 0), 1
    flags = False, False, True, True
    taken = []
    for call in (torch.convolution, torch._convolution):
        torch.cuda.reset_accumulated_memory_stats()
        call(x, weight, None, *places, *(flags if call is torch._convolution else ()))
        taken.append(torch.cuda.memory_stats()["requested_bytes.all.allocated"])
    assert taken[0] == taken[1] > 60e6


@pytest.mark.parametrize(
    ("channels", "groups", "last", "dtype", "expected"),
    [
        (96, 96, True, torch.float32, True),  # convnext_tiny: cuDNN, in the format of its input
        (96, 1, True, torch.float32, True),
        (96, 96, False, torch.float32, False),
        (96, 1, False, torch.float32, False),
        (96, 1, True, torch.float64, False),  # cuDNN is not asked for float64 in that format
    ],
)
def test_a_convolution_keeps_the_format_of_its_input(channels, groups, last, dtype, expected):
    x = torch.empty(8, channels, 56, 56, dtype=dtype, device="meta")
    if last:
        x = x.to(memory_format=torch.channels_last)
    w = torch.empty(channels, channels // groups, 7, 7, dtype=dtype, device="meta")
    more = (None, [1, 1], [3, 3], [1, 1], False, [0, 0], groups)
    ahead = convolution.shape(OperatorCall(torch.ops.aten.convolution.default, (x, w, *more), {}))
    y = torch.empty_strided(ahead.fresh[0].size, ahead.fresh[0].stride, dtype=dtype, device="meta")
    assert y.is_contiguous(memory_format=torch.channels_last) is expected
    mask = [True, True, False]
    back = OperatorCall(torch.ops.aten.convolution_backward.default, (y, x, w, *more, mask), {})
    assert convolution.shape_backward(back).fresh[0].stride == y.stride()


def test_a_loss_and_a_logsumexp_hold_what_they_are_composed_of():
    rows = torch.empty(512, 1000, device="meta")
    every, few = rows.numel() * 4, 512 * 4
    call = OperatorCall(torch.ops.aten.binary_cross_entropy_with_logits.default, (rows, rows), {})
    taken = loss.bce_with_logits(Launch(call, (spec_of((), torch.float32, 0),), H100))
    assert [step.nbytes for step in taken if step.kind == "temporary"][:2] == [every, every]
    found = OperatorCall(torch.ops.aten.logsumexp.default, (rows, [1]), {})
    taken = reduce.logsumexp(Launch(found, (spec_of((512,), torch.float32, 0),), H100))
    assert [step.nbytes for step in taken if step.kind == "temporary"] == [few, few, 512, every]


@pytest.mark.parametrize("rows", [(2, 3), ()])
@pytest.mark.parametrize("transposed", ["", "Transpose"])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions_of_every_dimension_run_as_on_the_cpu(dimensions, transposed, rows):
    layer = getattr(torch.nn, f"Conv{transposed}{dimensions}d")(rows[-1] if rows else 3, 8, 3)
    x = torch.randn(*(rows or (3,)), *(9,) * dimensions)
    wanted = layer(x)
    with virtual.activated("T4"):
        y = layer.cuda()(x.cuda())
        y.sum().backward()
        assert (y.shape, y.stride()) == (wanted.shape, wanted.stride())
        assert layer.weight.grad.shape == layer.weight.shape


def test_a_row_convolution_takes_its_input_as_contiguous():
    """Mamba's is a transposed product: torch's own code copies it (tests/oracle)."""
    x = torch.empty(2, 32, 256, device="meta").transpose(1, 2)[:, :128]
    w = torch.empty(128, 1, 4, device="meta")
    more = (None, [1], [3], [1], False, [0], 128)
    call = OperatorCall(torch.ops.aten.convolution.default, (x, w, *more), {})
    assert convolution.shape(call).fresh[0].stride == (128 * 35, 35, 1)
