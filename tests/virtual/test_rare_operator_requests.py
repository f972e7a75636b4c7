"""Allocator requests and errors of rare operators.

The sizes are those of the oracle (tests/oracle) with torch 2.13 on an H100 80GB.
"""

import pytest
import torch

from nbmem import virtual
from tests.virtual.allocation_history import own_allocations

pytestmark = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"
)
aten, linalg = torch.ops.aten, torch.linalg


def rand(*sizes, **options):
    return torch.rand(sizes, device="cuda", **options)


def learned(*sizes):
    return rand(*sizes).requires_grad_()


def norm_backward(gradient, *size):
    x, channels = rand(*size), rand(size[1])
    nothing = torch.empty(0, dtype=torch.uint8, device="cuda")
    statistics = (channels,) * 4
    rest = [True, 1e-5, [True] * 3, nothing]
    return lambda: aten.batch_norm_backward(gradient(*size), x, channels, *statistics, *rest)


def expanded(*size):
    return torch.ones((), device="cuda").expand(size)


def deferred_call(call, *tensors):
    return lambda: call(*tensors)


def transposed(*size, bias=0, groups=1):
    """Return a transposed convolution with a stride below its dilation."""
    call = getattr(torch, f"conv_transpose{len(size) - 2}d")
    weight = rand(size[1], 3, *[3] * (len(size) - 2))
    return deferred_call(
        call, rand(*size), weight, rand(bias) if bias else None, 1, 0, 1, groups, 2
    )


def transposed_backward(gradient, *size, bias, groups=1):
    call = getattr(torch, f"conv_transpose{len(size) - 2}d")
    weight = learned(size[1], 3, *[3] * (len(size) - 2))
    result = call(learned(*size), weight, learned(bias), 1, 0, 1, groups, 2)
    incoming = gradient(*result.size())
    return lambda: result.backward(incoming)


@torch.inference_mode()
def chosen(mask, numbers):
    return torch.where(mask, 0, numbers)


def numbers():
    return torch.arange(100, device="cuda")


CASES = {
    "nanmedian": (
        lambda: deferred_call(torch.nanmedian, rand(7)),
        [28, 56, 56, -56, -56, 7, 8, 56, -56, 8, 4, 8, -4, -8, -8, -7, 4, -8, -28],
    ),
    "normal by number and tensor": (
        lambda: deferred_call(torch.normal, 0.5, rand(5, 4)),
        [4, 1, -1, -4, 80, 4, 1, -1, -4, 4, -4],
    ),
    "normal by tensor and number": (
        lambda: deferred_call(torch.normal, rand(5, 4), 0.5),
        [80, 80, -80],
    ),
    "normal by many": (
        lambda: deferred_call(torch.normal, rand(500, 400), rand(500, 400)),
        [4, 100, 4, -4, -100, 1, -1, -4, 800000, 4, 100, 4, -4, -100, 1, -1, -4],
    ),
    "eigenvalues": (
        lambda: deferred_call(linalg.eigvals, rand(5, 5)),
        [4, 40, 40, 100, -100, 5, 1, -1, -5, -40, 40, -40, 1, 1, -1, -1, -4],
    ),
    "eigenvalues of nothing": (
        lambda: deferred_call(linalg.eigvals, rand(0, 0)),
        [4, 1, -1, 1, 1, -1, -1, -4],
    ),
    "eigenvectors": (
        lambda: deferred_call(linalg.eig, rand(5, 5)),
        [
            *(100, 25, 25, 25, -25, -25, -100, 1, -1, -25, 4, 200, 40, 40, 100, 100, -100),
            *(5, 1, -1, -5, -100, -40, 40, 200, -200, -40, 1, 1, -1, -1, -4),
        ],
    ),
    "eigenvectors of complex ones": (
        lambda: deferred_call(linalg.eig, rand(2, 5, 5, dtype=torch.complex64)),
        [
            *(200, 50, 50, 50, -50, -50, -200, 200, 50, 50, 50, -50, -50, -200, -50, 1, -1),
            *(-50, 8, 400, 80, 400, -400, 80, 400, -400, -80, 1, -1, -8),
        ],
    ),
    "norm in float64": (
        lambda: deferred_call(
            lambda x: linalg.vector_norm(x, 2, 1, dtype=torch.float64), rand(20, 3)
        ),
        [160, 480, -480],
    ),
    "norms of a list with nothing": (
        lambda: deferred_call(lambda *x: torch._foreach_norm(x, 2), rand(20), rand(0), rand(3)),
        [12, 4, 4, 4, 4, -4, -12],
    ),
    "norms of a list in float64": (
        lambda: deferred_call(
            lambda *x: torch._foreach_norm(x, 3, dtype=torch.float64), rand(20), rand(3)
        ),
        [8, 160, -160, 8, 24, -24],
    ),
    "times powers of two, in halves": (
        lambda: deferred_call(torch.ldexp, rand(50, dtype=torch.half), rand(1, dtype=torch.half)),
        [2, 2, -2, 100, -2],
    ),
    "integers between floats": (
        lambda: deferred_call(lambda x: x.clamp(min=1e-5), numbers()),
        [400, 400, -400],
    ),
    "integers between integers": (lambda: deferred_call(lambda x: x.clamp(1, 5), numbers()), [800]),
    "bools from one on": (
        lambda: deferred_call(torch.clamp_min, numbers().bool(), 1),
        [800, 800, -800],
    ),
    "products of a list": (
        lambda: deferred_call(torch._foreach_mm, [rand(16, 16)] * 2, [rand(16, 16)] * 2),
        [2048, 2048, 8, 8, 1023, -1023, -8, 2048, -2048, -2048, -8],
    ),
    "products of an uneven list": (
        lambda: deferred_call(torch._foreach_mm, *[[rand(16, 16), rand(8, 8)]] * 2),
        [1024, 256],
    ),
    "outer products of what is expanded": (
        lambda: deferred_call(torch.bmm, expanded(3, 2, 1), rand(3, 1, 4)),
        [96],
    ),
    "batch norm of rows, backward": (
        lambda: norm_backward(rand, 2, 1),
        [8, 4, 4, 4, 4, 8, -4, -4, -8],
    ),
    "batch norm by cuDNN, backward": (
        lambda: norm_backward(expanded, 2, 3, 4, 4),
        [4, 384, 384, 12, 12, -384, -4],
    ),
    "layer norm of one number": (
        lambda: torch.nn.LayerNorm(1, device="cuda")(learned(1)).sum().backward,
        [4, 4, 4, 4, -4],
    ),
    "masked select of a number": (
        lambda: deferred_call(
            torch.masked_select, rand(), torch.ones((), dtype=torch.bool, device="cuda")
        ),
        [4, 1, -1, 8, 1023, -1023, -4, 4, -8],
    ),
    "where, below autograd": (
        lambda: deferred_call(chosen, rand(8) > 0.5, torch.arange(8, device="cuda")),
        [8, 64, -8],
    ),
    "to sparse": (
        lambda: deferred_call(torch.eye(4, device="cuda").to_sparse),
        [4, 1, -1, 64, 1023, -1023, -4, 64, 16, 16, -16, -64],
    ),
    "to sparse columns": (
        lambda: deferred_call(torch.eye(4, device="cuda").to_sparse_csc),
        [
            *(16, 16, 4, 1, -1, 64, 1023, -1023, -4, -16, 40, 16, 4, 1, -1, 32, 1023, -1023),
            *(-4, -16, 64, 16, -64, -32, -16),
        ],
    ),
    "transposed": (lambda: transposed(2, 4, 4, 4), [1944, 1728, -1728]),
    "transposed, with a bias": (
        lambda: transposed(2, 4, 4, bias=3),
        [216, 144, 36, -36, -144],
    ),
    "transposed in space": (
        lambda: transposed(2, 4, 4, 4, 4, bias=3),
        [2048, 17496, -2048, 20736, 2916, -2916, -20736],
    ),
    "transposed in groups": (
        lambda: transposed(2, 4, 4, 4, bias=6, groups=2),
        [
            *(256, 1944, 1728, 324, -324, -1728, -256, 256, 1944, 1728, 324, -324, -1728, -256),
            *(3888, -1944, -1944),
        ],
    ),
    "transposed, backward": (
        lambda: transposed_backward(rand, 2, 4, 4, 4, bias=3),
        [512, 1728, -1728, 432, 12, 1728, -1728],
    ),
    "transposed, backward from a sum": (
        lambda: transposed_backward(expanded, 2, 4, 4, 4, bias=3),
        [1944, 512, 1728, -1728, -1944, 432, 12, 1944, 1728, -1728, -1944],
    ),
    "transposed in groups, backward": (
        lambda: transposed_backward(rand, 2, 4, 4, 4, bias=6, groups=2),
        [
            *(1944, 256, 256, 1728, -1728, 216, 12, 1728, -1728, -256, -1944),
            *(1944, 256, 256, 1728, -1728, 216, 12, 1728, -1728, -256, -1944),
            *(512, 432, 24, -12, -12, -216, -216, -256, -256),
        ],
    ),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("case", CASES)
def test_an_operator_requests_what_torch_requests(case):
    x = learned(8, 8)
    (x @ x).sum().backward()  # the workspace first
    del x
    prepare, expected = CASES[case]
    assert own_allocations(prepare()) == expected


@pytest.mark.usefixtures("gpu")
def test_an_outer_product_takes_no_workspace_of_cublas():
    torch.bmm(rand(3, 2, 1), rand(3, 1, 4))
    assert torch.cuda.memory_allocated() == 0
    torch.bmm(rand(3, 2, 2), rand(3, 2, 4))
    assert torch.cuda.memory_allocated() > 0


@pytest.mark.usefixtures("gpu")
def test_a_transposed_convolution_is_not_padded_by_its_stride_and_its_dilation():
    weight = rand(4, 3, 3)
    with pytest.raises(RuntimeError) as refused:
        torch.conv_transpose1d(rand(2, 4, 4), weight, None, 1, 0, 1)
    assert str(refused.value) == (
        "output padding must be smaller than either stride or dilation, but got "
        "output_padding_height: 0 output_padding_width: 1 stride_height: 1 stride_width: 1 "
        "dilation_height: 1 dilation_width: 1"
    )
    assert torch.conv_transpose1d(rand(2, 4, 4), weight, None, 2, 0, 1).size() == (2, 3, 10)


def test_flash_attention_by_name_wants_ampere():
    with virtual.activated("T4"):
        query = rand(2, 16, 4, 8, dtype=torch.half)
        with pytest.raises(RuntimeError, match="FlashAttention only supports Ampere"):
            aten._scaled_dot_product_flash_attention(query, query, query)
