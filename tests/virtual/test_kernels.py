"""The kernel table against figures read from the recordings."""

import pytest

torch = pytest.importorskip("torch", reason="the virtual card answers torch")


from nbmem.virtual.cards import find_card
from nbmem.virtual.kernels import KERNELS, embedding, reduce

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
    shape = reduce.geometry(torch.empty(rows, columns, device="meta"), [0])
    assert reduce.staging(shape, 4, H100) == (staging, semaphores)


def test_a_small_reduction_needs_no_staging():
    shape = reduce.geometry(torch.empty(8, 64, device="meta"), [0])
    assert reduce.staging(shape, 4, H100) == (0, 0)


@pytest.mark.parametrize(("count", "scratch"), [(4096, 83_455), (8192, 150_015)])
def test_the_sort_of_an_embeddings_indices_needs_what_was_recorded(count, scratch):
    assert embedding.sort_scratch(count) == scratch


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.ops[0])
def test_every_line_says_where_it_is_from(kernel):
    assert kernel.source
    assert kernel.shown_by
    assert any(hasattr(torch.ops.aten, name.partition(".")[0]) for name in kernel.ops)


def test_no_operator_has_two_lines():
    names = [name for kernel in KERNELS for name in kernel.ops]
    assert len(names) == len(set(names))
