"""Choice of the attention kernel, and its memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem import virtual
from tests.virtual.allocation_history import allocations

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def inputs(dtype=F32, *, heads=12, rows=512, size=64, grad=True):
    return [
        torch.randn(4, heads, rows, size, device="cuda", dtype=dtype, requires_grad=grad)
        for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("card", "dtype", "size", "masked", "expected"),
    [
        ("H100", F16, 64, False, "Cudnn"),
        ("H100", BF16, 64, True, "Cudnn"),  # cuDNN adds masks, too
        ("H100", BF16, 256, False, "Cudnn"),  # on Hopper since cuDNN 9.10
        ("H100", BF16, 12, False, "Flash"),
        ("H100", BF16, 12, True, "Clone"),  # plain products and what brings them back to bfloat16
        ("H100", F32, 64, True, "Efficient"),
        ("A100 40GB", BF16, 64, False, "Flash"),
        ("A100 40GB", BF16, 64, True, "Efficient"),
        ("B200", BF16, 256, False, "Flash"),
        ("T4", F16, 64, False, "Efficient"),
    ],
)
def test_the_kernel_is_the_one_that_cuda_chooses(card, dtype, size, masked, expected):
    with virtual.activated(card):
        mask = torch.ones(64, 64, dtype=torch.bool, device="cuda") if masked else None
        result = F.scaled_dot_product_attention(*inputs(dtype, rows=64, size=size), mask)
        name = result.grad_fn.name()
        if name == "SliceBackward0":  # the padding of a head that 8 does not divide
            name = result.grad_fn.next_functions[0][0].name()
    kernels = {"Cudnn", "Flash", "Efficient"}
    found = next((kernel for kernel in kernels if kernel in name), "Clone")
    assert found == expected


def test_a_mask_of_bools_is_added_as_zeros_and_infinities(gpu):
    mask = torch.ones(4, 1, 512, 512, dtype=torch.bool, device="cuda")
    q, k, v = inputs(grad=False)
    taken, _ = allocations(lambda: F.scaled_dot_product_attention(q, k, v, mask))
    # Two scalars, the mask, the result; without gradients no log-sum-exp.
    assert taken == [4, 4, 4 << 20, -4, -4, 6 << 20, -(4 << 20)]


def test_plain_products_add_the_mask_in_place(gpu):
    q, k, v = inputs(grad=False)
    taken, _ = allocations(
        lambda: F.scaled_dot_product_attention(
            q, k[:, :4], v[:, :4], is_causal=True, enable_gqa=True
        )
    )
    scores = 4 * 12 * 512 * 512 * 4
    assert taken.count(scores) == 2  # the products and their softmax


def test_the_backward_of_wide_heads_keeps_tiles_of_the_size_that_fits(gpu):
    q, k, v = inputs(rows=1024, size=128)
    result = F.scaled_dot_product_attention(q, k, v)
    (taken, _) = allocations(lambda: result.backward(torch.empty_like(result)))
    heads, rows = 48, 48 * 1024 * 4
    workspace = heads * 8 * 2 * (128 * 64 * 4 + 16)
    at = taken.index(workspace)
    # gpt2_b4s512_adamw: the sums go before the product, in the end delta before the workspace.
    assert taken[at - 4 : at] == [rows, rows, -rows, -(24 << 20)]
    assert taken[at + 1 : at + 3] == [-rows, -workspace]


def test_half_types_sum_up_in_the_kernel_itself():
    with virtual.activated("A100 40GB"):
        q, k, v = inputs(BF16)
        mask = torch.zeros(512, 512, dtype=BF16, device="cuda")
        result = F.scaled_dot_product_attention(q, k, v, mask)
        taken, _ = allocations(lambda: result.backward(torch.empty_like(result)))
    gradients = [3 << 20] * 3
    assert taken[1:7] == [*gradients, 48 * 512 * 4, 48 * 8 * (64 * 64 * 4 + 16), -48 * 512 * 4]


def test_an_encoder_layers_fast_path_takes_what_its_operators_take(gpu):
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda().eval()
    x = torch.randn(16, 128, 512, device="cuda")
    with torch.no_grad():
        layer(x)  # the workspaces of cuBLAS
        taken, result = allocations(lambda: layer(x))
    row, norm = 16 * 128 * 512 * 4, [8192, 8192, -8192, -8192]
    assert result.shape == x.shape
    assert taken == [
        *(3 * row, row, row, -row, -3 * row),  # projected, attended, projected back
        *(row, *norm, -row),
        *(4 * row, row, -4 * row),  # the two products
        *(row, *norm, -row, -row),
    ]


def fast_paths(device):
    """Return the shapes of the fast paths' results."""
    options = {"batch_first": True, "device": device}
    attention = nn.MultiheadAttention(64, 4, **options).eval()
    first = nn.TransformerEncoderLayer(64, 4, 128, 0, "gelu", norm_first=True, **options)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, **options), 2).eval()
    x, padding = (
        torch.randn(3, 10, 64, device=device),
        torch.zeros(3, 10, dtype=torch.bool, device=device),
    )
    with torch.no_grad():
        yield from attention(x, x, x)
        yield from attention(x, x, x, average_attn_weights=False)
        yield from attention(x, x, x, key_padding_mask=padding)
        yield attention(x, x, x, need_weights=False)[0]
        yield first.eval()(x)
        yield first(x, src_key_padding_mask=padding)
        yield stack(x)


def test_fast_paths_return_what_they_do_on_the_cpu(gpu):
    shapes = [[t.shape for t in fast_paths(device)] for device in ("cpu", "cuda")]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("release", "dropout", "expected"),
    [
        ("2.11.0", 0.1, "Cudnn"),  # gpt2_b8s512_adamw_ampbf16
        ("2.12.1", 0.1, "Flash"),
        ("2.13.0", 0.1, "Flash"),
        ("2.13.0", 0.125, "Cudnn"),
    ],
)
def test_newer_releases_leave_cudnn_alone_with_a_dropout_it_cannot_draw(release, dropout, expected):
    with virtual.activated("H100", release=release):
        result = F.scaled_dot_product_attention(*inputs(BF16, rows=64), dropout_p=dropout)
    assert expected in result.grad_fn.name()


def test_flash_draws_its_dropout_aside_and_wants_rows_before_heads_in_backward():
    """As torch 2.13's own code does (tests/oracle)."""
    with virtual.activated("H100", release="2.13.0"):
        q, k, v = (
            torch.ones(2, 12, 64, 64, dtype=BF16, device="cuda", requires_grad=True)
            for _ in range(3)
        )
        taken, result = allocations(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1))
        gradient = torch.ones_like(q)
        given, _ = allocations(lambda: result.backward(gradient))
    one = 2 * 12 * 64 * 64 * 2
    assert taken == [one, 2 * 12 * 64 * 4, 16, 8, 16, -16]
    sums, accumulator = 2 * 12 * 128 * 4, 2 * 12 * 128 * 64 * 4
    assert given[:7] == [*[one] * 5, sums, accumulator]


def test_one_heads_row_sums_need_no_copy(gpu):
    """diffusers' autoencoders attend with one head (tests/oracle)."""
    q, k, v = (torch.ones(2, 1, 64, 64, device="cuda", requires_grad=True) for _ in range(3))
    result = F.scaled_dot_product_attention(q, k, v)
    taken, _ = allocations(lambda: result.backward(torch.ones_like(result)))
    assert taken.count(2 * 64 * 4) == 1


def test_plain_products_leave_the_scaled_queries_the_mask_and_what_is_returned_last(gpu):
    """Grouped queries of Llama and its like (tests/oracle)."""
    q, k, v = inputs(heads=4, rows=64, grad=False)
    taken, _ = allocations(
        lambda: F.scaled_dot_product_attention(
            q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True
        )
    )
    queries, mask, scores = 4 * 4 * 64 * 64 * 4, 64 * 64 * 4, 4 * 4 * 64 * 64 * 4
    assert taken[-3:] == [-queries, -mask, -scores]


@pytest.mark.parametrize("release", ["2.11.0", "2.13.0"])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("permuted", [False, True])
def test_a_mask_is_fused_by_its_rows_whether_it_learns_or_not(release, learns, permuted):
    """As both releases' own code does (tests/oracle), and an H100 with 2.11: BEiT's masks learn and
    are fused; T5's positions were recorded, and are permuted."""
    with virtual.activated("H100", release=release):
        mask = torch.zeros(64, 64, 12, device="cuda", requires_grad=learns).permute(2, 0, 1)
        mask = mask if permuted else mask.contiguous()
        result = F.scaled_dot_product_attention(*inputs(rows=64), mask)
        result.backward(torch.empty_like(result))
    assert ("View" if permuted else "Efficient") in result.grad_fn.name()


SPLIT_KV_SCRATCH = {
    # card, batch, heads of queries and of keys, keys, size of a head: bytes of partial results
    ("H100 80GB", 8, 8, 8, 512, 64): 0,
    ("H100 80GB", 1, 4, 4, 640, 64): 4480,  # 4 parts; the statistics are aligned
    ("H100 80GB", 1, 32, 8, 4096, 128): 532_608,  # 32: two blocks for each processor
    ("H100 80GB", 1, 16, 2, 16384, 128): 532_608,  # 64, never more
    ("H100 80GB", 32, 4, 4, 4096, 128): 0,  # 2 would be too few
    ("A100 80GB", 1, 8, 8, 4096, 64): 33_920,
}


@pytest.mark.parametrize("shape", SPLIT_KV_SCRATCH, ids=str)
def test_one_querys_keys_are_taken_in_parts_that_fill_the_card(shape):
    card, batch, heads, groups, keys, size = shape
    virtual.activate(card)
    query = torch.zeros(batch, heads, 1, size, device="cuda", dtype=BF16)
    key = torch.zeros(batch, groups, keys, size, device="cuda", dtype=BF16)
    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    taken, _ = allocations(lambda: attend(query, key, key, None, False, 0.0, False))  # noqa: FBT003
    expected = SPLIT_KV_SCRATCH[shape]
    parts = [expected, -expected] if expected else []
    assert taken == [8, 8, batch * heads * size * 2, *parts]
