"""Small float types, scaled products and grouped ones.

The sizes were read from torch 2.13's CUDA build without a card (tests/oracle).
"""

import pytest
import torch

from nbmem import virtual
from tests.virtual.allocation_history import own_allocations

if not hasattr(torch, "_scaled_grouped_mm"):
    pytest.skip("this torch has no products of groups", allow_module_level=True)

E4, BF = torch.float8_e4m3fn, torch.bfloat16


def some(*size, dtype=BF):
    return torch.empty(size, dtype=dtype, device="cuda")


def ends(count):
    return torch.arange(count, dtype=torch.int32, device="cuda")


def scaled(rows, scale, other):
    left, right = some(rows, 128, dtype=E4), some(256, 128, dtype=E4).t()
    scales = some(*scale, dtype=torch.float32), some(*other, dtype=torch.float32)
    return lambda: torch._scaled_mm(left, right, *scales, out_dtype=BF)


@pytest.mark.parametrize(
    ("card", "scale", "other", "workspace"),
    [
        ("H100", (), (), [32 << 20]),
        ("H100", (64, 1), (1, 256), [32 << 20]),
        ("B200", (64, 1), (1, 256), []),
        ("L40S", (), (), [8519680]),
    ],
)
def test_a_scaled_product_takes_its_result_and_the_workspace(card, scale, other, workspace):
    with virtual.activated(card):
        assert own_allocations(scaled(64, scale, other)) == [64 * 256 * 2, *workspace]


def test_a_scaled_product_is_refused_where_there_is_none():
    with virtual.activated("A100 80GB"), pytest.raises(RuntimeError, match=r">= 9\.0 or 8\.9"):
        scaled(64, (), ())()


@pytest.mark.parametrize(
    ("card", "dtype", "groups", "scratch"),
    [
        ("H100", BF, 3, (204, 67584)),
        ("H100", BF, 4, (240, 67584)),
        ("H100", E4, 3, (268, 67584)),
        ("B200", BF, 3, (204, 795648)),
        ("B200", E4, 4, (304, 75776)),
        ("A100 80GB", BF, 4, ()),
        ("H100", torch.float16, 4, ()),
    ],
)
def test_groups_at_once_take_what_torch_took(card, dtype, groups, scratch):
    with virtual.activated(card):
        offsets = ends(groups)
        left, right = some(64, 128, dtype=dtype), some(groups, 256, 128, dtype=dtype).mT
        if dtype is E4:
            scales = some(64, dtype=torch.float32), some(groups, 256, dtype=torch.float32)
            events = own_allocations(
                lambda: torch._scaled_grouped_mm(left, right, *scales, offs=offsets)
            )
        else:
            events = own_allocations(lambda: torch._grouped_mm(left, right, offs=offsets))
        assert events == [64 * 256 * 2, *scratch, *(-size for size in reversed(scratch))]


def in_pairs(rows):
    return some(rows, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


def exponents(count):
    return some(count, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def of_exponents():
    """MXFP4: 128 rows of 128 values, a scale for 32 of them."""
    if not hasattr(torch.nn.functional, "scaled_mm"):
        pytest.skip("this torch has no MXFP4")
    kind = torch.nn.functional.ScalingType.BlockWise1x32
    scales = exponents(512), kind, exponents(512), kind
    swizzle = torch.nn.functional.SwizzleType.SWIZZLE_32_4_4
    return torch.nn.functional.scaled_mm(
        in_pairs(128),
        in_pairs(128).t(),
        *scales,
        swizzle_a=swizzle,
        swizzle_b=swizzle,
        output_dtype=BF,
    )


def of_e5m2():
    left = some(64, 64, dtype=torch.float8_e5m2)
    scale = some(dtype=torch.float32)
    return torch._scaled_mm(left, left.t(), scale, scale, out_dtype=BF)


def of_an_expanded_gradient():
    return torch._grouped_mm(some().expand(8, 64), some(2, 64, 64), ends(2))


def of_rows_between_16_bytes():
    return torch._grouped_mm(some(8, 65), some(2, 65, 63), ends(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (of_exponents, "MXFP4 scaling only supported in CUDA for B200/B300"),
        (of_e5m2, "Multiplication of two Float8_e5m2 matrices is not supported"),
        (of_an_expanded_gradient, r"Invalid strides/sizes, got \[0, 0\] for strides and \[8, 64\]"),
        (of_rows_between_16_bytes, "strides should be multiple of 16 bytes"),
    ],
)
def test_a_product_is_refused_as_cuda_refuses_it(gpu, call, words):
    with pytest.raises((RuntimeError, ValueError), match=words):
        call()


def test_mxfp4_runs_on_cards_that_have_it():
    with virtual.activated("B200"):
        made = of_exponents()
        assert (made.shape, made.dtype) == ((128, 128), BF)


def test_weights_of_eight_bits_are_multiplied_in_float32(gpu):
    x, weight, scales = some(16, 256), some(128, 256, dtype=torch.int8), some(128)
    events = own_allocations(lambda: torch._weight_int8pack_mm(x, weight, scales))
    assert events == [16384, 512, 8192, 4096, -8192, -512, -16384]


def test_weights_of_four_bits_have_results(gpu):
    packed = some(32, 2, 32, 4, dtype=torch.int32)
    result = torch._weight_int4pack_mm(some(3, 256), packed, 32, some(8, 256, 2))
    assert (result.size(), result.dtype) == ((3, 256), BF)
    assert torch._cslt_compress(some(128, 128, dtype=torch.float16)).size() == (128, 72)


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (lambda x: x + x, "ufunc_add_CUDA"),
        (lambda x: x.mul_(2), "mul_cuda"),
        (lambda x: x @ x, "addmm_cuda"),
        (lambda x: x.abs(), "abs_cuda"),
        (lambda x: x.max(), "max_all_cuda"),
        (lambda x: x.max(0), "max_cuda"),
        (lambda x: x.masked_fill(x.isnan(), 0), "masked_fill_"),
    ],
)
def test_float8_is_no_type_for_arithmetic(gpu, call, kernel):
    message = f"\"{kernel}\" not implemented for 'Float8_e4m3fn'"
    with pytest.raises(NotImplementedError) as refused:
        call(some(4, 4, dtype=E4))
    assert str(refused.value) == message


def test_float8_is_moved_and_compared(gpu):
    x = some(4, 4, dtype=E4)
    for call in (x.clone, x.isnan, x.float, x.t().contiguous, lambda: torch.cat([x, x])):
        assert call().device.type == "cuda"
