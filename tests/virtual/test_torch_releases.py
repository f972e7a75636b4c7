"""Memory of operators by torch release, and Blackwell's attention."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem import virtual
from nbmem.virtual.hardware.cudnn.problem import FOR_WEIGHT, FORWARD, Answer, Problem, Tiling
from nbmem.virtual.operators.convolution import workspace
from nbmem.virtual.operators.linalg import roots
from nbmem.virtual.operators.sorting import cub
from tests.virtual.allocation_history import own_allocations

WITH_GROUPS = pytest.mark.skipif(
    torch.__version__ < (2, 14), reason="the shapes of grouped gradients are those of torch 2.14"
)
BF16, F32 = torch.bfloat16, torch.float32


def attention(shape, keys=None, *, dtype=F32, **options):
    """Return the sizes of a forward and a dense backward."""
    sizes = (shape, keys or shape, keys or shape)
    tensors = [
        torch.zeros(size, dtype=dtype, device="cuda").requires_grad_(options.get("learned", True))
        for size in sizes
    ]
    options.pop("learned", None)
    made = []
    forward = own_allocations(
        lambda: made.append(F.scaled_dot_product_attention(*tensors, **options))
    )
    if not made[0].requires_grad:
        return forward, []
    ones = torch.ones_like(made[0])
    return forward, own_allocations(lambda: made[0].backward(ones))


@pytest.mark.parametrize(
    ("shape", "keys", "options", "forward", "backward"),
    [
        (
            (4, 3, 8),
            None,
            {},
            [8, 8, 384, 512],
            [*[384] * 4, 48, 48, -48, -384, 65600, -48, -65600, *[384, -384] * 3],
        ),
        ((4, 3, 8), None, {"dropout_p": 0.5}, [384, 512], None),
        ((4, 32, 64), None, {"dtype": BF16}, [8, 8, 16384, 512, 256, -256], None),
        pytest.param(
            (2, 4, 3, 8),
            (2, 2, 6, 8),
            {"enable_gqa": True},
            [8, 8, 768, 1024],
            [
                *[768] * 3, 1536, 1536, 768, 96, 96, -96, -768, 131200, -96, -131200, -1536,
                -1536, *[768, -768] * 3,
            ],
            marks=WITH_GROUPS,
        ),
        ((2, 4, 3, 8), (2, 1, 6, 8), {}, [8, 8, 768, 1024], None),
    ],
    ids=["three", "dropout", "half", "groups", "one head for all"],
)  # fmt: skip
def test_attention_of_three_dimensions_and_of_groups_is_fused(
    shape, keys, options, forward, backward
):
    with virtual.activated("H100", release="2.14.1"):
        found = attention(shape, keys, **options)
    assert found[0] == forward
    assert backward is None or found[1] == backward


def test_a_mask_outlives_the_seeds_that_nobody_wants():
    with virtual.activated("H100", release="2.14.1"):
        mask = torch.zeros(3, 3, device="cuda")
        found, _ = attention((4, 3, 8), attn_mask=mask, learned=False)
    assert found == [96, 8, 8, 384, -8, -8, -96]


@pytest.mark.parametrize(
    ("shape", "keys", "options", "forward", "backward"),
    [
        ((2, 8, 512, 64), None, {}, 0, 2_129_920),
        ((2, 8, 512, 64), None, {"dropout_p": 0.25}, 524_416, 2_654_336),
        ((2, 8, 100, 64), (2, 8, 300, 64), {}, 0, 842_112),
        ((2, 8, 100, 64), (2, 8, 300, 64), {"dropout_p": 0.25}, 98_432, 514_432),
        ((2, 8, 129, 64), (2, 8, 64, 64), {}, 0, 1_093_824),
        ((2, 8, 64, 64), (2, 2, 64, 64), {"enable_gqa": True}, 0, 790_656),
    ],
)
def test_blackwells_attention_has_workspaces_of_its_own(shape, keys, options, forward, backward):
    with virtual.activated("B200"):
        found = attention(shape, keys, dtype=BF16, **options)
    workspaces = [{-size for size in side if size < 0} for side in found]
    assert workspaces == [{forward} - {0}, {backward}]


def test_a_gradient_that_is_expanded_is_copied_behind_the_results():
    with virtual.activated("H100"):
        q = torch.zeros(4, 4, 3, 8, dtype=BF16, device="cuda", requires_grad=True)
        k = torch.zeros(4, 4, 6, 8, dtype=BF16, device="cuda", requires_grad=True)
        made = F.scaled_dot_product_attention(q, k, k.detach().clone().requires_grad_())
        one = torch.ones((), dtype=BF16, device="cuda").expand_as(made)
        assert own_allocations(lambda: made.backward(one)) == [
            768,
            1536,
            1536,
            768,
            1984,
            -1984,
            -768,
        ]


UNEVEN = {
    "source": ((1, 4, 1, 5), (20, 5, 5, 1)),
    "weight": ((3, 4, 1, 3), (12, 3, 3, 1)),
    "result": ((1, 3, 1, 3), (9, 3, 3, 1)),
}


@pytest.mark.parametrize("kind", [FORWARD, FOR_WEIGHT])
@pytest.mark.parametrize(("said", "expected"), [(528, 528), (600, 146)])
def test_copies_whose_channels_cudnn_fills_up_are_as_large_as_it_says(kind, said, expected):
    with virtual.activated("B200") as gpu:
        problem = Problem(
            kind, "bfloat16", **UNEVEN, padding=(0, 0), stride=(1, 1), dilation=(1, 1), tf32=True,
            deterministic=False,
        )  # fmt: skip
        answer = Answer(said, Tiling(128, 128, cluster=(2, 4), splits=False))
        assert workspace.nbytes(problem, answer, gpu.card, last=False) == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            roots.square_root,
            [
                *(100, 20, 4, 1, 1, -1, -1, -4, 20, 20, -20, 100, 100, -100, 100, 100),
                *(-100, -100, -20, -20, -100),
            ],
        ),
        (
            roots.polar,
            [
                *(100, 100, 100, 100, 20, 4, 100, -100, 1, 1, -1, -1, -4, 100, 100, -100, 100),
                *(100, -100, -100, 100, -100, -100, -100, -20, -100),
            ],
        ),
    ],
    ids=["square root", "polar form"],
)
@pytest.mark.usefixtures("card")
def test_roots_of_matrices_are_made_of_their_parts(make, expected):
    tensor = torch.ones(5, 5, device="cuda")
    assert own_allocations(lambda: make(tensor)) == expected


@pytest.mark.parametrize(
    ("card", "count", "blocks"),
    [
        *[("H100", 8192, 1), ("H100", 8193, 2), ("H100", 2_000_000, 245)],
        *[("H100", 3_000_000, 184), ("T4", 1_081_345, 67), ("T4", 10_000_000, 77)],
    ],
)
def test_indices_of_a_known_number_are_counted_by_blocks(card, count, blocks):
    with virtual.activated(card):
        mask = torch.ones(count, dtype=torch.bool, device="cuda")
        found = own_allocations(lambda: torch.nonzero_static(mask, size=4))
        assert found == [32, 4 * blocks, 8 * blocks, -8 * blocks, -4 * blocks]
        assert torch.nonzero_static(mask[:6].view(2, 3), size=4).stride() == (1, 4)


@pytest.mark.parametrize(
    ("release", "flat", "last"),
    [
        ("2.13.0", [96, 24, 24, 96, 96, 48, 48, -48, -48, -96, -96], [384, 384, 48, 48]),
        ("2.14.1", [96, 24, 24, 48, 48, -48, -48], [384, 48, 48, 384]),
    ],
)
def test_group_norm_asks_as_its_release(release, flat, last):
    with virtual.activated("H100", release=release):
        x = torch.zeros(4, 6, 1, 1, device="cuda", requires_grad=True)
        norm = torch.nn.GroupNorm(3, 6).cuda()
        y = norm(x)
        ones = torch.ones_like(y)
        assert own_allocations(lambda: y.backward(ones)) == flat
        image = torch.zeros(4, 6, 2, 2, device="cuda").to(memory_format=torch.channels_last)
        given = (image, norm.weight, norm.bias, 4, 6, 4, 3, 1e-5)
        assert own_allocations(lambda: torch.native_group_norm(*given))[:4] == last


@pytest.mark.parametrize(("release", "wide"), [("2.11.0", []), ("2.13.0", [48, 48])])
def test_group_norm_of_halves_keeps_wide_means_as_its_release(release, wide):
    """2.11: an H100's own answer, tests/card's atlas."""
    with virtual.activated("H100", release=release):
        x = torch.zeros(4, 6, 2, 2, device="cuda", dtype=torch.bfloat16)
        norm = torch.nn.GroupNorm(3, 6).cuda().bfloat16()
        given = (x, norm.weight, norm.bias, 4, 6, 4, 3, 1e-5)
        sizes = [
            size for size in own_allocations(lambda: torch.native_group_norm(*given)) if size > 0
        ]
        assert sizes == [192, 24, 24, *wide, 96, 96]


@pytest.mark.skipif(torch.__version__ < (2, 14), reason="the formula is that of torch 2.14")
def test_what_a_formula_keeps_in_a_variable_is_filled_where_it_is():
    with virtual.activated("H100"):
        a, b = (torch.zeros((), device="cuda", requires_grad=True) for _ in range(2))
        largest = torch.maximum(a, b)
        ones = torch.ones_like(largest)
        found = own_allocations(lambda: largest.backward(ones))
        assert found == [1, 4, 1, 4, -1, -4, -1, 1, 4, 1, 4, -1, -4, -1]


@pytest.mark.skipif(torch.__version__ >= (2, 14), reason="the formula is that of torch 2.13")
def test_a_gradient_that_a_formula_holds_is_not_filled_where_it_is():
    with virtual.activated("H100"):
        a, b = (torch.zeros((), device="cuda", requires_grad=True) for _ in range(2))
        largest = torch.fmax(a, b)
        ones = torch.ones_like(largest)
        assert own_allocations(lambda: largest.backward(ones)) == [1, 1, 4, -1, -1] * 2


@pytest.mark.usefixtures("card")
def test_what_only_the_cpu_has_is_refused():
    tensors = [torch.zeros(2, 2, 4, 8, device="cuda") for _ in range(3)]
    with pytest.raises(NotImplementedError, match="from the 'CUDA' backend"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors)


def masks_of_a_clamp():
    x, least, most = (torch.zeros(9, device="cuda", requires_grad=True) for _ in range(3))
    y = torch.clamp(x, least, most)
    ones = torch.ones_like(y)
    return [size for size in own_allocations(lambda: y.backward(ones)) if size > 0]


def test_masks_of_a_clamp_are_joined_as_the_release_does():
    with virtual.activated("H100", release="2.13.0"):
        before = masks_of_a_clamp()
    with virtual.activated("H100", release="2.14.1"):
        assert len(before) < len(masks_of_a_clamp())


@pytest.mark.parametrize(
    ("release", "call", "expected"),
    [
        ("2.9.1", torch.linalg.eig, [100, 25, 25, 25, -25, -25, -100, 1, -1, -25, 40, 200]),
        ("2.11.0", torch.linalg.eigvals, [4, 40, 40, 100, -100, 5, 1, -1, -5, -40, 40]),
        ("2.9.1", lambda x: torch._foreach_max([x, x]), [8, 4, 4, -8]),
        ("2.11.0", lambda x: torch._foreach_max([x, x]), [4, 4, 8, -8]),
    ],
)
def test_eigenvalues_and_maxima_ask_as_their_release(release, call, expected):
    with virtual.activated("H100", release=release):
        tensor = torch.ones(5, 5, device="cuda")
        assert own_allocations(lambda: call(tensor))[: len(expected)] == expected


@pytest.mark.parametrize(("release", "expected"), [("2.9.1", 767), ("2.11.0", 1023)])
def test_tiles_are_nested_once_more_by_cuda_13(monkeypatch, release, expected):
    monkeypatch.setattr(torch, "__version__", release)
    assert cub.tile_states(1, 8) == expected
    assert cub.tile_states(1, 4, 2) == 1279
