"""Memory steps of the norms' kernels."""

import pytest
import torch

from nbmem import virtual
from nbmem.virtual.card_names import find_card
from nbmem.virtual.operator_model.operator import Launch
from nbmem.virtual.operators.layers import softmax
from nbmem.virtual.operators.norm import norm_kernels as norm
from nbmem.virtual.tensors.operator_call import OperatorCall
from nbmem.virtual.tensors.shapes import spec_of
from tests.virtual.allocation_history import own_allocations

H100 = find_card("H100")


def launch_steps(rule, call, *outs):
    """Return a launch's steps as text."""
    specs = tuple(spec_of(tuple(t.size()), t.dtype, n) for n, t in enumerate(outs))
    sizes: dict[str, int] = {}
    steps = []
    for step in rule(Launch(call, specs, H100)):
        if step.kind == "temporary":
            sizes[step.name] = step.nbytes
        if step.kind == "drop" and step.name not in sizes:
            continue
        steps.append(
            f"out {step.number}"
            if step.kind == "out"
            else -sizes[step.name]
            if step.kind == "drop"
            else step.nbytes or step.kind
        )
    return steps


def on_meta(*size, dtype=torch.float32, last=False):
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(size, dtype=dtype, device="meta", memory_format=layout)


def test_a_norm_over_many_short_rows_adds_up_in_tiles_as_recorded():
    rows = 32 * 56 * 56
    x, w, m = on_meta(32, 56, 56, 96), on_meta(96), on_meta(rows, 1)
    more = ([96], m, m, w, w, [True, True, True])
    call = OperatorCall(torch.ops.aten.native_layer_norm_backward.default, (x, x, *more), {})
    each = [614_400, 8, -8, -614_400, -384]
    assert launch_steps(norm.rows_backward, call, x, w, w) == [
        "out 0", 384, 384, 1_204_224, 1_204_224, "out 1", *each, "out 2", *each
    ]  # fmt: skip


def test_group_norm_keeps_factors_and_sums_of_channels_and_groups():
    x, w, m = on_meta(8, 256, 56, 56, dtype=torch.bfloat16), on_meta(256), on_meta(8, 32)
    shape = (8, 256, 56 * 56, 32)
    ahead = OperatorCall(torch.ops.aten.native_group_norm.default, (x, w, w, *shape, 1e-5), {})
    assert launch_steps(norm.group_norm, ahead, x, m, m) == [
        "out 0", "out 1", "out 2", 8192, 8192
    ]  # fmt: skip
    call = (x, x, m, m, w, *shape, [True, True, True])
    back = OperatorCall(torch.ops.aten.native_group_norm_backward.default, call, {})
    assert launch_steps(norm.group_norm_backward, back, x, w, w) == [
        "out 0", "out 1", "out 2", 8192, 8192, 1024, 1024, 8192, -1024, -1024
    ]  # fmt: skip


def test_batch_norm_of_bfloat16_stages_its_sums_where_channels_are_last():
    # cuDNN's kernel is not for bfloat16 (_select_batch_norm_backend).
    x, w = on_meta(32, 64, 56, 56, dtype=torch.bfloat16, last=True), on_meta(64)
    ahead = OperatorCall(
        torch.ops.aten.native_batch_norm.default, (x, w, w, w, w, True, 0.1, 1e-5), {}
    )
    assert launch_steps(norm.native_batch_norm, ahead, x, w, w) == [
        "out 0", "out 1", "out 2", 4 * 64 * 128 * 4, 8
    ]  # fmt: skip
    call = (x, x, w, w, w, w, w, True, 1e-5, [True, True, True])
    back = OperatorCall(torch.ops.aten.native_batch_norm_backward.default, call, {})
    staged = 2 * 64 * 128 * 4
    assert launch_steps(norm.native_batch_norm_backward, back, x, w, w) == [
        256, 256, "out 1", "out 2", staged, 8, -8, -staged, "out 0"
    ]  # fmt: skip


def test_batch_norm_takes_cudnns_kernel_where_torch_does(gpu):
    def kernel(dtype, *size):
        norm = torch.nn.BatchNorm2d(4) if len(size) == 4 else torch.nn.BatchNorm1d(4)
        x = torch.randn(size, device="cuda", dtype=dtype, requires_grad=True)
        return norm.cuda()(x).grad_fn.name()

    assert kernel(torch.float32, 2, 4, 3, 3) == "CudnnBatchNormBackward0"
    assert kernel(torch.float16, 2, 4, 3, 3) == "CudnnBatchNormBackward0"
    assert kernel(torch.bfloat16, 2, 4, 3, 3) == "NativeBatchNormBackward0"
    assert kernel(torch.float32, 2, 4) == "NativeBatchNormBackward0"


def test_softmax_multiplies_gradient_and_output_before_it_goes_back():
    flat = on_meta(64, 1000)
    turned = on_meta(1000, 64).t()
    back = torch.ops.aten._softmax_backward_data.default

    def steps(gradient, output, rule=softmax.kernel_backward):
        return launch_steps(
            rule, OperatorCall(back, (gradient, output, -1, torch.float32), {}), flat
        )

    whole = 64 * 1000 * 4
    assert steps(flat, flat) == ["out 0", whole]
    assert steps(flat, turned) == ["out 0", whole, whole]
    assert steps(turned, turned) == ["out 0", whole, whole, whole]
    assert steps(flat[:, :1].expand(64, 1000), flat) == ["out 0", whole]
    log = softmax.log_kernel_backward
    assert steps(flat, flat, log) == ["out 0"]
    assert steps(turned, turned, log) == ["out 0", whole, whole]


@pytest.mark.parametrize(
    ("size", "dtype", "forward", "backward"),
    [
        ((2, 128, 28, 28), torch.float32, 26_880, 18_472),
        ((2, 384, 7, 7), torch.float32, 7_288, 7_224),
        ((2, 64, 56, 56), torch.float32, 51_644, 34_852),
        ((32, 256, 14, 14), torch.float32, 203_360, 136_240),
        ((16, 160, 17, 17), torch.float32, 114_088, 76_332),
        ((8, 256, 14, 14), torch.float16, 21_728, 35_888),
    ],
)
def test_batch_norm_with_channels_last_takes_what_an_h100_took(size, dtype, forward, backward):
    with virtual.activated("H100"):
        x = torch.zeros(size, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        layer = torch.nn.BatchNorm2d(size[1]).cuda()
        y = layer(x.requires_grad_())  # its handle
        ones = torch.ones_like(y)
        channels = 4 * size[1]
        found = own_allocations(lambda: layer(x))
        assert found[-5:] == [x.nbytes, channels, channels, forward, -forward]
        assert own_allocations(lambda: y.backward(ones)) == [
            *(x.nbytes, channels, channels, backward, -backward)
        ]
        layer.eval()
        assert forward not in own_allocations(lambda: layer(x))
