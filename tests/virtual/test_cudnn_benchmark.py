"""cuDNN's benchmark mode and its cache of kernels."""

import pytest
import torch

from nbmem.virtual.warnings import NOT_ASKED
from tests.fake_cudnn import FakeCudnn

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def benchmark():
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


@pytest.fixture
def tensors(gpu):
    """Make an image of 1 MiB and a window."""
    with torch.no_grad():
        yield torch.empty(1, 16, 128, 128, device="cuda"), torch.empty(16, 16, 3, 3, device="cuda")


def requests(gpu, call):
    """Return a call's allocator events: (action, bytes)."""
    torch.cuda.memory._record_memory_history(context=None, clear_history=True, stacks="python")
    call()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    return [
        (e["action"], e["size"]) for e in trace if e["action"] not in {"free_completed", "snapshot"}
    ]


def convolve(image, window):
    return torch.nn.functional.conv2d(image, window, padding=1)


def sizes(found):
    return [size for action, size in found if action == "alloc"]


def test_a_benchmark_takes_the_largest_once_and_empties_the_cache(gpu, tensors, benchmark):
    gpu.dnn = FakeCudnn(3 * MIB, 0, 40 * MIB, 7 * MIB)
    first = requests(gpu, lambda: convolve(*tensors))
    assert sizes(first) == [MIB, 40 * MIB, 3 * MIB]
    assert ("segment_free", 40 * MIB) in first
    assert sizes(requests(gpu, lambda: convolve(*tensors))) == [MIB, 3 * MIB]
    assert gpu.dnn.asked_for_all == 1


def test_what_was_found_without_a_benchmark_is_kept(gpu, tensors):
    gpu.dnn = FakeCudnn(3 * MIB, 40 * MIB)
    convolve(*tensors)
    torch.backends.cudnn.benchmark = True
    try:
        assert 40 * MIB not in sizes(requests(gpu, lambda: convolve(*tensors)))
    finally:
        torch.backends.cudnn.benchmark = False


def test_backward_has_a_cache_of_its_own(gpu, benchmark):
    """Its thread finds the forward kernels again when it computes activations anew."""
    gpu.dnn = FakeCudnn(3 * MIB, 40 * MIB)
    image = torch.empty(1, 16, 128, 128, device="cuda", requires_grad=True)
    window = torch.empty(16, 16, 3, 3, device="cuda")

    def run():
        saved = torch.utils.checkpoint.checkpoint(
            lambda x: torch.nn.functional.conv2d(x, window).relu(), image, use_reentrant=False
        )
        return requests(gpu, saved.sum().backward)

    assert sizes(run()).count(40 * MIB) == 2  # forward once more, and the gradient
    assert sizes(run()).count(40 * MIB) == 0


def test_a_workspace_that_does_not_fit_is_left_for_a_smaller_one(gpu, tensors):
    gpu.dnn = FakeCudnn(200 * GIB, 100 * GIB, 2 * MIB)
    assert sizes(requests(gpu, lambda: convolve(*tensors)))[-1] == 2 * MIB
    # It is remembered: the large ones are not tried again.
    assert torch.cuda.memory_stats()["num_ooms"] == 2
    convolve(*tensors)
    assert torch.cuda.memory_stats()["num_ooms"] == 2


def test_a_benchmark_leaves_out_what_the_card_has_no_room_for(gpu, tensors, benchmark):
    gpu.dnn = FakeCudnn(200 * GIB, 6 * MIB, 2 * MIB)
    assert sizes(requests(gpu, lambda: convolve(*tensors)))[-2:] == [6 * MIB, 6 * MIB]
    assert torch.cuda.memory_stats()["num_ooms"] == 0


def test_a_benchmark_halves_what_the_allocator_refuses(gpu, tensors, benchmark):
    gpu.dnn = FakeCudnn(64 * MIB, 20 * MIB, 40 * MIB)
    torch.cuda.set_per_process_memory_fraction(50 * MIB / gpu.card.total_bytes)
    assert sizes(requests(gpu, lambda: convolve(*tensors)))[-2:] == [32 * MIB, 20 * MIB]


@pytest.mark.parametrize(("measures", "word"), [(False, "GET"), (True, "FIND")])
def test_without_any_that_fits_it_is_torchs_sentence(gpu, tensors, measures, word):
    gpu.dnn = FakeCudnn(200 * GIB)
    torch.backends.cudnn.benchmark = measures
    try:
        with pytest.raises(RuntimeError, match=f"^{word} was unable to find an engine"):
            convolve(*tensors)
    finally:
        torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize(
    ("shape", "window", "measures", "said"),
    [
        ((1, 16, 128, 128), (16, 16, 3, 3), False, False),
        ((1, 16, 128, 128), (16, 16, 3, 3), True, True),
        ((1, 16, 32, 32), (16, 16, 3, 3), False, True),
        ((1, 16, 32, 32), (128, 16, 3, 3), False, False),
        ((1, 16, 32, 32), (128, 16, 5, 5), False, True),
        ((1, 3, 32, 32), (64, 3, 3, 3), False, False),
        ((1, 64, 56, 56), (64, 64, 3, 3), False, False),
    ],
)
def test_a_missing_cudnn_is_noted_where_it_matters(gpu, shape, window, measures, said):
    gpu.dnn = FakeCudnn()
    torch.backends.cudnn.benchmark = measures
    try:
        torch.nn.functional.conv2d(
            torch.empty(shape, device="cuda"), torch.empty(window, device="cuda")
        )
    finally:
        torch.backends.cudnn.benchmark = False
    assert (NOT_ASKED in gpu.notes) is said
