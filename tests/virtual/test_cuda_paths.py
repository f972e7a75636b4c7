"""Operators with another path on CUDA: sizes in order.

The figures are the oracle's (tests/oracle), of torch 2.13 on the H100.
"""

import pytest
import torch
from torch.nn import functional

from tests.virtual.allocation_history import own_allocations

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are those of torch 2.13"),
    pytest.mark.usefixtures("card"),
]
linalg, aten = torch.linalg, torch.ops.aten


def zeros(*sizes):
    return [torch.zeros(size, device="cuda") for size in sizes]


def counted(size, counts):
    return [*zeros(size), torch.tensor(counts, device="cuda")]


CHECKED = [1, 1, -1, -1, -4]
CALLS = {
    "singular values alone": (
        linalg.svdvals,
        (zeros, (5, 3)),
        [12, 4, 60, 100, 36, -36, -100, -60, *CHECKED],
    ),
    "singular values of large matrices": (
        linalg.svdvals,
        (zeros, (4, 64, 32)),
        [512, 16, 32768, 8192, 4096, -4096, -8192, -32768, 1, -1, -16],
    ),
    "square vectors of small matrices": (
        lambda a: linalg.svd(a, full_matrices=False),
        (zeros, (5, 3)),
        [60, 36, 12, 4, 60, 100, -100, -60, *CHECKED],
    ),
    "another driver": (
        lambda a: linalg.svd(a, driver="gesvd"),
        (zeros, (4, 5, 5)),
        [400, 400, 80, 16, 400, 20, 100, -100, -20, -400, 1, -1, -16],
    ),
    "eigenvalues alone": (linalg.eigvalsh, (zeros, (5, 5)), [20, 100, 4, *CHECKED, -100]),
    "a pseudoinverse": (
        linalg.pinv,
        (zeros, (5, 5)),
        [
            *(8, 8, 100, 100, 20, 4, 100, -100, *CHECKED, 8, 8, -8, 4, 20, 5, 20, -5, -20, -4),
            *(100, 100, -100, -20, -8, -100, -20, -100, -8, -8),
        ],
    ),
    "a rank": (
        linalg.matrix_rank,
        (zeros, (5, 5)),
        [
            *(8, 8, 8, 20, 4, 100, 100, 100, -100, -100, -100, *CHECKED),
            *(8, 8, -8, 5, 40, -40, -5, -8, -20, -8, -8),
        ],
    ),
    "reflectors without Q": (
        lambda a: linalg.qr(a, mode="r"),
        (zeros, (10, 5)),
        [100, 20, 200, 4, -4, -200, -20],
    ),
    "reflectors of many rows": (
        linalg.qr,
        (zeros, (2, 300, 5)),
        [12000, 200, 40, 4, -4, 4, -4, -40],
    ),
    "reflectors of several matrices": (
        torch.geqrf,
        (zeros, (2, 10, 5)),
        [400, 40, 16, 16, -16, -16],
    ),
    "least squares": (
        linalg.lstsq,
        (zeros, (5, 3), (5, 4)),
        [4, 80, 60, 12, 4, -4, 4, -4, 8, 8, -8, -8, -12, 16, -60, *CHECKED],
    ),
    "least squares of a wide matrix": (
        linalg.lstsq,
        (zeros, (3, 5), (3, 4)),
        [4, 80, 60, 12, 60, 4, -4, 8, 8, -8, -8, 4, -4, -60, -12, -60, *CHECKED],
    ),
    "least squares of several matrices": (
        linalg.lstsq,
        (zeros, (4, 5, 3), (4, 5, 2)),
        [16, 160, 240, 240, 32, 32, -32, -32, -240, 32, -240, 1, -1, -16],
    ),
    "chunks of a list": (
        lambda *parts: torch._chunk_cat(parts, 0, 4),
        (zeros, (1000, 300), (50, 30)),
        [1206240, 1296, -1296],
    ),
    "parts of a tensor": (
        lambda x, *out: torch.split_with_sizes_copy(x, [1 << 19] * 2, 1, out=out),
        (zeros, (2, 1 << 20), (2, 1 << 19), (2, 1 << 19)),
        [16456, -16456],
    ),
    "segments by offsets": (
        lambda x, at: torch.segment_reduce(x, "sum", offsets=at, unsafe=True),
        (counted, (5, 4), (0, 2, 4, 5)),
        [48, 24, -24],
    ),
    "segments of a vector by lengths": (
        lambda x, at: torch.segment_reduce(x, "sum", lengths=at, unsafe=True),
        (counted, (5,), (2, 2, 1)),
        [12, 8, 32, -8, 1279, -1279, 1, -1, -32],
    ),
    "runs with their inverse": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        (zeros, (1000,)),
        [8000, 4000, 1023, -1023, -4000, 4000, 8, 8000, 1023, -1023, -8],
    ),
    "a mode along rows": (lambda x: torch.mode(x, 0), (zeros, (10, 4)), [16, 32, 160, -160]),
    "elements that are among few": (
        torch.isin,
        (zeros, (1000,), (3,)),
        [1000, 3000, 1000, -1000, -3000],
    ),
    "infinite numbers": (torch.isinf, (zeros, (10, 10)), [400, 100, -400]),
    "norms of lists by another order": (
        lambda *tensors: torch._foreach_norm(tensors, 3),
        (zeros, (5, 5), (5, 5)),
        [4, 4],
    ),
    "rows without a score": (
        lambda x: aten._safe_softmax.default(x, 0),
        (zeros, (3, 4, 5)),
        [240, 60, 20, 4, -4, -20, -60],
    ),
    "nothing to norm": (
        functional.batch_norm,
        (zeros, (0, 3), (3,), (3,)),
        [12, 12, -12, -12],
    ),
    "several draws": (
        lambda x: torch.multinomial(x, 3),
        (zeros, (3,)),
        [24, 4, 4, 1, 1, 1, -1, -1, 4, 1, -4, 1, -1, 12, 12, -12, -12, -1, -1, -4, -4],
    ),
    "draws with replacement": (
        lambda x: torch.multinomial(x, 3, replacement=True),
        (zeros, (3,)),
        [24, 12, 12, 12, 1023, -1023, -12, -12, -12],
    ),
}
"""By what is done: a call, what makes its arguments, and the sizes that it allocates and frees."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_what_it_takes_on_a_card(name):
    call, (make, *sizes), expected = CALLS[name]
    arguments = make(*sizes)
    assert own_allocations(lambda: call(*arguments)) == expected


def learned(make, *size):
    x = torch.ones(*size, device="cuda", requires_grad=True)
    results = make(x)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    ones = [torch.ones_like(result) for result in results]
    return own_allocations(lambda: torch.autograd.backward(results, ones))


FORMULAS = {
    "a product": (
        lambda x: x.prod(),
        (5, 5),
        [25, 4, 1, -1, 1023, -1023, -4, -25, 100, 100, -100],
    ),
    "products along a dimension": (
        lambda x: x.prod(0),
        (5, 5, 5),
        [125, 200, 1000, -1000, 8, -8, 500, 500, -500, -200, -125],
    ),
    "products up to each": (
        lambda x: x.cumprod(0),
        (5, 5, 5),
        [500, 125, 1, -1, 500, 500, 500, -500, -500, 500, -500, -125, -500],
    ),
    "eigenvectors": (
        linalg.eigh,
        (5, 5),
        [100, 100, 100, -100, 100, -100, 100, 100, -100, -100, -100],
    ),
    "rows of a largest norm": (
        lambda x: x.renorm(2, 0, 1.0),
        (5, 5),
        [
            *(20, 100, 20, -100, 100, 5, 100, -5, -100, -20, 20, 20, -20, 100, 100, 20, 100),
            *(-20, -100, -100, 5, 100, -5, -100, -20, -100, -20),
        ],
    ),
    "signs": (lambda x: x.sgn(), (5, 5), []),
}
"""By what is derived: the function, the size of its argument, and what its gradient takes."""


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_takes_the_cuda_path(name):
    make, size, expected = FORMULAS[name]
    assert learned(make, *size) == expected


def test_the_cuda_path_leaves_a_gradient_of_full_size():
    x = torch.ones(5, 5, device="cuda", requires_grad=True)
    x.cumprod(0).sum().backward()
    assert x.grad.shape == x.shape
    assert x.grad.data_ptr()
    held = torch.cuda.memory_allocated()
    x.grad = None
    assert torch.cuda.memory_allocated() == held - 512


def test_a_gradient_of_a_gradient_keeps_the_formula_of_all_devices():
    x = torch.ones(5, 5, device="cuda", requires_grad=True)
    (gradient,) = torch.autograd.grad(x.prod(), x, create_graph=True)
    gradient.sum().backward()
    assert x.grad.shape == x.shape


def test_a_target_that_learns_takes_a_second_tensor():
    x, target = (tensor.requires_grad_() for tensor in zeros((5, 5), (5, 5)))
    loss = functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    ones = torch.ones_like(loss)
    assert own_allocations(lambda: loss.backward(ones)) == [100, 100, 100, -100]


def test_a_sequence_of_channels_keeps_its_copy_to_the_end():
    """As Mamba's convolution has it, whose input is transposed."""
    x = torch.zeros(2, 20, 16, device="cuda").transpose(1, 2).requires_grad_()
    weight, bias = (tensor.requires_grad_() for tensor in zeros((16, 1, 4), (16,)))
    y = functional.conv1d(x, weight, bias, padding=3, groups=16)
    ones = torch.ones_like(y, memory_format=torch.contiguous_format)
    expected = [2560, 256, 2560, 64, -2560, 2560, -2560]
    assert own_allocations(lambda: y.backward(ones)) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_transforms_run_in_half_types_as_in_others(dtype):
    x = torch.ones(8, 16, device="cuda", dtype=dtype, requires_grad=True)
    found = torch.fft.rfft(x)
    assert found.size() == (8, 9)
    assert found.dtype is {torch.float16: torch.complex32}.get(dtype, torch.complex64)
    torch.fft.irfft2(found).sum().backward()
    assert x.grad.dtype is dtype
    whole = torch.fft.fftn(x)
    assert torch.fft.hfft2(torch.fft.ihfft2(whole.real)).size() == x.size()
    assert torch.fft.ifft(whole, 8).size() == (8, 8)


def test_half_types_have_powers_of_two_alone():
    with pytest.raises(RuntimeError, match=r"powers of two .* a signal size of\[12\]"):
        torch.fft.fft(torch.ones(2, 12, device="cuda", dtype=torch.float16))


def test_what_cuda_refuses_of_linear_algebra_is_refused():
    (matrix,) = zeros((4, 5))
    with pytest.raises(RuntimeError, match=r"linalg.pinv\(Half\{\[4, 5\]\}\): expected"):
        linalg.pinv(matrix.half())
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        linalg.lstsq(matrix, matrix, driver="gelsd")


def test_lists_refuse_to_subtract_bools_as_a_card_does():
    with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
        torch._foreach_sub(zeros((3,)), True)  # noqa: FBT003 - that is the point
    masks = [mask.bool() for mask in zeros((3,))]
    with pytest.raises(RuntimeError, match="with two bool tensors is not supported"):
        torch._foreach_sub(masks, masks)


def test_a_kernel_from_a_string_takes_its_results():
    code = "template <typename T> T scaled(T x, T y) { return x * y; }"
    kernel = torch.cuda.jiterator._create_jit_fn(code)
    arguments = zeros((5, 4), (4,))
    assert own_allocations(lambda: kernel(*arguments)) == [80]
    with pytest.raises(RuntimeError, match="on the GPU alone"):
        kernel(torch.zeros(4), arguments[1])


@pytest.mark.parametrize("has_biases", [True, False])
def test_a_buffer_of_recurrent_weights_has_room_for_biases(has_biases):
    net = torch.nn.LSTM(8, 6, bias=has_biases).cuda()
    result, _ = net(torch.zeros(5, 2, 8, device="cuda", requires_grad=True))
    ones = torch.ones_like(result)
    found = own_allocations(lambda: result.backward(ones))
    assert 1536 in found
    assert (768 in found and 576 in found) is not has_biases


def test_what_fsdp_calls_by_names_of_its_own_takes_the_same_tables():
    pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    parts, packed = zeros((1000, 300), (50, 30)), torch.zeros(4, 75_390, device="cuda")
    assert own_allocations(lambda: torch.ops.fsdp.chunk_cat(parts, 0, 4, out=packed)) == [
        1296,
        -1296,
    ]
    (whole, *halves) = zeros((2, 1 << 20), (2, 1 << 19), (2, 1 << 19))
    sizes = [1 << 19] * 2
    unpack = torch.ops.fsdp.split_with_sizes_copy
    assert own_allocations(lambda: unpack(whole, sizes, dim=1, out=halves)) == [16456, -16456]
