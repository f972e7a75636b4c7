"""Scratch memory of sorts, scans and selections."""

import pytest
import torch
from torch.nn import functional

from nbmem import virtual
from nbmem.virtual.card_names import find_card
from nbmem.virtual.operators.sorting import cub
from tests.virtual.allocation_history import own_allocations

MiB = 1 << 20
H100 = find_card("H100")


@pytest.mark.parametrize(
    ("count", "bits", "recorded"),
    [
        (4096, None, 83_455),  # gptneox_b8s512_adamw
        (8192, None, 150_015),  # nn_transformer_b32s256_adam
        (65_536, None, 1_080_831),  # t5_small_b8s256_adafactor: 15 tiles
        (2401, 8, 3583),  # swin_t_b32_adamw: one pass needs no second buffers
        (2304, None, 1),  # one block sorts that many by itself
    ],
)
def test_a_sort_of_indices_takes_what_was_recorded(count, bits, recorded):
    assert cub.radix_sort(H100, count, 8, 8, bits) == recorded


@pytest.mark.parametrize(
    ("release", "rows", "expected"),
    [
        ("2.12.1", 30_522, 283_135),  # all bits: eight passes
        ("2.13.0", 30_522, 270_847),  # 15 bits: two
        ("2.13.0", 250_000, 272_895),
        ("2.13.0", 2, 6655),  # one pass needs no second buffers
    ],
)
def test_an_embedding_sorts_by_the_bits_of_its_rows(release, rows, expected):
    """The last three are what torch 2.13's own code takes (tests/oracle)."""
    with virtual.activated("H100", release=release):
        weight = torch.empty(rows, 64, device="cuda", requires_grad=True)
        result = functional.embedding(torch.zeros(16_384, dtype=torch.long, device="cuda"), weight)
        sizes = own_allocations(lambda: result.backward(torch.empty_like(result)))
    assert expected in sizes


@pytest.mark.parametrize("count", [32, 4096, 8192])
def test_sums_of_partial_segments_take_what_was_recorded(count):
    assert cub.exclusive_sum(count, 8) == 1279
    assert cub.unique_by_key(H100, count, 8) == cub.unique_by_key(H100, 65_536, 8) == 1279


def test_a_count_takes_as_much_as_its_blocks_in_flight():
    # 132 multiprocessors with 8 blocks of 256 threads, five times over.
    assert cub.count_nonzero(H100, 1 << 20) == 132 * 40 * 4 + 128 + 255
    assert cub.count_nonzero(H100, 4096) == 1


def gradient(make, *sizes, dtype=torch.float32):
    """Return the sizes of the backward of `make(x)`."""
    x = torch.randn(*sizes, device="cuda", dtype=dtype, requires_grad=True)
    y = make(x)
    ones = torch.ones_like(y)
    return own_allocations(lambda: y.backward(ones))


def put(place):
    torch.zeros(25, device="cuda").index_put_(
        (place,), torch.ones(2, device="cuda"), accumulate=True
    )


def draw(chances):
    torch.multinomial(chances, 1)


def invert(_):
    torch.cholesky_inverse(torch.ones(5, 5, device="cuda"))


def solve(_):
    torch.cholesky_solve(*(torch.ones(2, 5, 5, device="cuda") for _ in range(2)))


@pytest.mark.parametrize(
    ("release", "call", "expected"),
    [
        ("2.11.0", put, [8, 1, -1, -8, 8, 1, -1, -8]),
        ("2.13.0", put, [8, 8, 1, -1, 1, -1, -8, -8]),
        ("2.11.0", draw, [4, 1, 4, 1, 1, -1, -4, -1, -4]),
        ("2.13.0", draw, [4, 4, 1, 1, 1, -1, -1]),
        ("2.11.0", invert, [100, 100, 4, -4, -100]),
        ("2.13.0", invert, [100, 100, 4, 100, -100, -4, -100]),
        ("2.11.0", solve, [200, 200, -200]),
        ("2.13.0", solve, [200, 16, 16, -16, -16]),
    ],
)
def test_a_release_asks_in_its_own_order(release, call, expected):
    """As the oracle has them with that release of torch."""
    with virtual.activated("H100", release=release):
        argument = torch.tensor([1, 2], device="cuda") if call is put else torch.ones(6).cuda()
        found = own_allocations(lambda: call(argument))
    assert any(found[n : n + len(expected)] == expected for n in range(len(found)))


def test_a_bias_that_is_scaled_is_not_added_by_an_epilogue():
    with virtual.activated("H100", release="2.11.0"):
        bias, x, y = (torch.ones(*size, device="cuda") for size in ((3,), (2, 2), (2, 3)))
        torch.mm(x, y)  # cuBLAS has its workspace, cuBLASLt not yet
        assert own_allocations(lambda: torch.addmm(bias, x, y, beta=0.5)) == [24]
        assert own_allocations(lambda: torch.addmm(bias[:1], x, y)) == [24]
        assert own_allocations(lambda: torch.addmm(bias[:1], x, y[:, :1])) == [8]  # one column,
        assert own_allocations(lambda: torch.addmm(bias, x[:, :1], y[:1])) == [
            24
        ]  # one row: as a card does
        assert own_allocations(lambda: torch.addmm(bias, x, y)) == [24, 1 << 20]


def test_a_gradient_that_is_expanded_is_copied_before_it_is_written_to(gpu):
    x = torch.ones(3, 5, device="cuda", requires_grad=True)
    y = torch.select_scatter(x, torch.ones(3, device="cuda"), 1, 0)
    y.backward(torch.ones(1, 1, device="cuda").expand(3, 5))
    assert x.grad.stride() == (5, 1)


@pytest.mark.usefixtures("gpu")
class TestOnTheCard:
    """Whole calls, in order."""

    def test_few_rows_of_an_embedding_are_added_up_at_once(self):
        indices = torch.zeros(65_536, dtype=torch.long, device="cuda")
        found = gradient(lambda w: functional.embedding(indices, w), 32, 8)
        # As t5_small_b8s256_adafactor's relative positions were recorded; newer releases of torch
        # sort by the six bits that 32 rows have.
        long, partial = 65_536 * 8, (6553 + 32) * 8
        size = 17_919 if virtual.active().rules.embedding_sorts_rows else 1_080_831
        sort, unique, scan = [size, -size], [1279, -1279], [1279, -1279]
        assert found[:6] == [long, long, long, *sort, -long]
        assert found[6:13] == [1024, long, 8, long, *unique, -long]
        assert found[13:] == [
            *(256, 256, *scan, 8, partial, partial),
            *(-partial, -partial, -8, -256, -256, -8, -long, -long, -long),
        ]

    def test_gradients_by_index_are_sorted_by_as_few_bits_as_rows_need(self):
        places = torch.zeros(2401, dtype=torch.long, device="cuda")
        found = gradient(lambda table: table[places].sum(), 169, 24)
        # As swin_t_b32_adamw's relative position bias was recorded.
        long, values = 2401 * 8, 2401 * 24 * 4
        assert found == [
            *(169 * 24 * 4, long, long, -long, values, long, long, long, 3583),
            *(-3583, -long, -long, -long, -values, -long),
        ]

    def test_a_mask_is_dropped_before_its_gradients_are_sorted(self):
        mask = (torch.arange(4096) % 4 == 0).view(64, 64).cuda()
        found = gradient(lambda x: x[mask], 64, 64)
        long = 1024 * 8
        assert found == [
            *(4096 * 4, 4, 1, -1, 2 * long, 1023, -1023, -4),
            *(long, long, -long, long, long, -long, -long, -2 * long),
            *(long, long, long, 1, -1, -long, -long, -long, -long),
        ]

    def test_bags_of_embeddings_are_sorted_whatever_their_number(self):
        table = torch.randn(100, 64, device="cuda", requires_grad=True)
        indices = torch.zeros(256, 4, dtype=torch.long, device="cuda")
        offsets, result = 256 * 8, 256 * 64 * 4
        bags = own_allocations(lambda: functional.embedding_bag(indices, table))
        assert bags == [offsets, offsets, 1024 * 8, result]
        assert len(gradient(lambda w: functional.embedding_bag(indices, w), 100, 64)) > 20
        assert gradient(lambda w: functional.embedding_bag(indices, w, mode="max"), 100, 64) == [
            25_600
        ]

    def test_a_selection_among_many_rows_counts_digits(self):
        x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
        values, indices = 4096 * 10 * 2, 4096 * 10 * 8
        blocks = [8192, 32_768, 32_768, 2 * MiB, 4 * MiB, 16_384, 16_384]
        sums = [1279, -1279] * 2
        found = own_allocations(lambda: x.topk(10))
        assert found == [values, indices, *blocks, *sums, *(-size for size in reversed(blocks))]
        assert own_allocations(lambda: x[:200].topk(10)) == [200 * 10 * 2, 200 * 10 * 8]

    @pytest.mark.parametrize(
        ("size", "expected"),
        [
            ((4096, 1024), [16 * MiB, 32 * MiB, 8192, -8192]),
            ((1 << 18,), [MiB, 2 * MiB, 2 * MiB, 3_204_607, -3_204_607, -2 * MiB]),
            ((128, 5000), [2_560_000, 5_120_000, 5_120_000, 7_680_255, -7_680_255, -5_120_000]),
        ],
    )
    def test_rows_are_sorted_in_place_by_one_sort_or_by_segments(self, size, expected):
        assert own_allocations(torch.randn(*size, device="cuda").sort) == expected

    def test_permutations_are_sorted_by_random_keys(self):
        short = [30_000 * 8, 8, -8, 30_000 * 8, 30_000 * 4, 30_000 * 4]
        assert own_allocations(lambda: torch.randperm(30_000, device="cuda"))[:6] == short
        size = 100_000 * 8
        long = [size, 8, -8, size, size, size, 1_633_279, -1_633_279]
        assert own_allocations(lambda: torch.randperm(100_000, device="cuda"))[:8] == long

    def test_a_roll_goes_dimension_by_dimension(self):
        x = torch.zeros(32, 8, 4, device="cuda")
        assert own_allocations(lambda: x.roll(3)) == own_allocations(lambda: x.roll(3, 0)) == [4096]
        assert own_allocations(lambda: x.roll((1, 2), (0, 1))) == [4096, 4096, -4096]
        assert own_allocations(lambda: x.roll((1, 2, 3), (0, 1, 2))) == [4096] * 3 + [-4096] * 2

    def test_a_log_sigmoid_has_the_buffer_of_the_cpu_alone(self):
        x = torch.zeros(1024, device="cuda")
        assert own_allocations(lambda: functional.logsigmoid(x)) == [4096]
        assert gradient(functional.logsigmoid, 1024) == [4096]

    def test_what_differs_is_kept_in_storage_for_all(self):
        x = torch.arange(1 << 12, device="cuda") // 64
        every = 8 << 12
        found = own_allocations(lambda: torch.unique(x))
        assert found == [every, 50_687, -50_687, every, 8, 1023, -1023, -8, -every]
        found = own_allocations(lambda: torch.unique(x, return_inverse=True, return_counts=True))
        sort, scan, runs = [83_455, -83_455], [1023, -1023], [1023, -1023]
        assert found == [
            *(every, every, every, *sort, -every, every, every, *scan, -every),
            *(every, 8, every, *runs, -8, -every, -every),
        ]

    def test_a_single_row_is_scanned_with_scratch(self):
        x = torch.ones(4, 1 << 16, dtype=torch.bool, device="cuda")
        long = 8 << 16
        # 74 tiles of 896 sums and 32 more, 16 bytes each.
        assert own_allocations(lambda: x[0].cumsum(0)) == [long, long, 2303, -2303, -long]
        assert own_allocations(lambda: x.cumsum(1)) == [4 * long, 4 * long, -4 * long]
        halves = torch.zeros(1 << 16, dtype=torch.float16, device="cuda")
        assert own_allocations(lambda: halves.cumsum(0)) == [2 << 16, 1279, -1279]

    def test_a_number_comes_to_the_card_but_not_for_a_mask(self):
        x = torch.zeros(64, 64, device="cuda")
        places = torch.zeros(3, dtype=torch.long, device="cuda")
        filled = torch.__version__ >= (2, 14)  # by index_fill_, which takes the number as it is
        assert own_allocations(lambda: x.__setitem__(places, 1.0)) == ([] if filled else [4, -4])
        assert own_allocations(lambda: x.__setitem__(x == 0, 1.0)) == [64 * 64, -64 * 64]

    def test_variances_of_everything_are_staged(self):
        x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
        assert own_allocations(lambda: torch.std_mean(x)) == [2, 2, 512 * 16, 4, -4, -512 * 16]
        assert own_allocations(x.max) == [2, 512 * 2, 4, -4, -512 * 2]

    def test_a_loss_is_reduced_from_a_second_buffer(self):
        x = torch.randn(1024, 1024, device="cuda")
        assert own_allocations(lambda: functional.mse_loss(x, x)) == [
            4 * MiB,
            4 * MiB,
            512,
            4,
            -4,
            -512,
            -4 * MiB,
        ]
        assert own_allocations(lambda: functional.huber_loss(x, x))[:2] == [4 * MiB, 4]

    def test_formulas_overwrite_what_they_made(self):
        target = torch.rand(64, 64, device="cuda")
        loss = functional.binary_cross_entropy_with_logits
        assert gradient(lambda x: loss(x, target), 64, 64) == [64 * 64 * 4]


def backward_takes(gpu, activation):
    """Return an activation's backward peak beside its gradient."""
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    result = activation(x)
    gradient = torch.ones_like(result)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result.backward(gradient)
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("activation", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_activations_that_a_cpu_build_takes_apart_are_one_kernel_backward(gpu, activation):
    assert backward_takes(gpu, activation) == 4 << 20


@pytest.mark.parametrize(("dtype", "copy"), [(torch.float16, 0), (torch.bfloat16, 4 << 20)])
def test_a_softmax_into_float32_reads_float16_alone(gpu, dtype, copy):
    x = torch.randn(1024, 1024, device="cuda", dtype=dtype)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.softmax(x, -1, dtype=torch.float32)
    assert torch.cuda.max_memory_allocated() - before == (4 << 20) + copy


def test_a_search_for_many_elements_sorts_all_of_them():
    """Sizes of torch 2.13's own code on an H100 (tests/oracle), freed ones below zero."""
    with virtual.activated("H100"):
        every, some = torch.arange(1000, device="cuda"), torch.arange(300, device="cuda")
        sizes = own_allocations(lambda: torch.isin(every, some, assume_unique=True))
        few = own_allocations(lambda: torch.isin(every, some[:3]))
        with pytest.raises(RuntimeError, match="Unsupported input type encountered for isin"):
            torch.isin(every > 3, some > 5)
    sort = [10_400, 10_400, 10_400, 10_400]  # all of them, in order, their places, and scratch
    assert [size for size in sizes if size > 0] == [1000, *sort, 1300, 1299, 1300]
    assert [size for size in few if size > 0] == [1000, 3000, 1000]
