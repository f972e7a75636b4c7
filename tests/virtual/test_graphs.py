"""CUDA graphs: private pools, and replays without allocations."""

import pytest
import torch

from nbmem import virtual
from tests.virtual.allocation_history import bytes_by_pool

MIB = 1 << 20
SIZE = 4 * MIB
SEGMENT = 20 * MIB
"""What the allocator takes from the driver for a block of 1 to 10 MiB."""
STATE, SMALL = 2 * 512, 2 * MIB
"""The seed and the offset that a graph's random numbers begin with, and the segment they are in."""


def held():
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


@pytest.fixture
def x(gpu):
    return torch.ones(SIZE // 4, device="cuda")


def captured(function, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        assert torch.cuda.is_current_stream_capturing()
        result = function()
    assert not torch.cuda.is_current_stream_capturing()
    return graph, result


def test_what_is_captured_comes_from_a_pool_of_its_own(x):
    graph, y = captured(lambda: x * 2 + 1)
    assert held() == (2 * SIZE + STATE, 2 * SEGMENT + SMALL)
    assert bytes_by_pool("total_size") == {(0, 0): SEGMENT + SMALL, graph.pool(): SEGMENT}
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        graph.replay()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    y + 1  # a block of the pool is free, but not for what is outside of the graph
    assert bytes_by_pool("total_size") == {(0, 0): SEGMENT + SMALL, graph.pool(): SEGMENT}
    del y
    torch.cuda.empty_cache()
    assert held() == (SIZE + STATE, 2 * SEGMENT + SMALL)  # a replay may write to it
    graph.reset()
    torch.cuda.empty_cache()
    assert held() == (SIZE, SEGMENT)


def test_graphs_that_share_a_pool_share_what_one_of_them_left_free(x):
    first, y = captured(lambda: x * 2 + 1)
    second, z = captured(lambda: x * 3 + 1, pool=first.pool())
    assert second.pool() == first.pool()
    assert held() == (3 * SIZE + 2 * STATE, 2 * SEGMENT + SMALL)
    alone, w = captured(lambda: x * 4 + 1)
    assert held() == (4 * SIZE + 3 * STATE, 3 * SEGMENT + SMALL)
    del first, y, z, alone, w
    torch.cuda.empty_cache()
    assert bytes_by_pool("total_size") == {(0, 0): SEGMENT + SMALL, second.pool(): SEGMENT}
    del second
    torch.cuda.empty_cache()
    assert bytes_by_pool("total_size") == {(0, 0): SEGMENT}


def test_a_pools_handle_and_a_stream_can_be_given(x):
    handle, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    graph, y = captured(lambda: x * 2, pool=handle, stream=stream)
    assert bytes_by_pool("total_size") == {(0, 0): SEGMENT + SMALL, graph.pool(): SEGMENT}
    assert graph.pool() == handle
    assert torch.cuda.current_stream() != stream
    del y


def test_a_capture_that_fails_is_over(x):
    with pytest.raises(ZeroDivisionError):
        captured(lambda: x * (1 // 0))
    assert not torch.cuda.is_current_stream_capturing()
    assert (x * 2).numel() == x.numel()
    assert bytes_by_pool("total_size")[0, 0] == SEGMENT + SMALL


def test_graphed_callables_hold_their_static_tensors_and_no_more(x):
    class Curve(torch.nn.Module):
        def forward(self, a):
            return (a * 2).exp()

    sample = x.requires_grad_()
    curve = torch.cuda.make_graphed_callables(Curve(), (sample,))
    # The sample, the output, its gradient outside of the pool and the input's inside.
    assert held()[0] == 4 * SIZE + 2 * STATE
    torch.cuda.empty_cache()  # what warming up took
    assert sorted(bytes_by_pool("total_size").values()) == [SEGMENT, SEGMENT + SMALL]
    for _ in range(3):
        y = curve(torch.ones(SIZE // 4, device="cuda", requires_grad=True))
        y.sum().backward()
        del y
        assert held()[0] == 4 * SIZE + 2 * STATE


def test_a_graph_is_captured_on_a_stream_of_its_own(x):
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: None)
    del x


@pytest.mark.parametrize(
    ("release", "blocks"),
    [
        ("2.11.0", [4, 4, 4, 4, 2, 0]),
        ("2.13.0", [0, 4, 6, 2, 2, 0]),
        ("2.14.0", [0, 2, 2, 0, 0, 0]),
    ],
)
def test_generators_that_a_graph_draws_from_have_their_state_on_the_card(release, blocks):
    """Figures: the oracle of each release."""
    with virtual.activated("H100 80GB", release=release):
        default = torch.cuda.default_generators[0]
        x = torch.zeros(1, device="cuda")
        taken = []

        def note():
            taken.append((held()[0] - STATE // 2) // (STATE // 2))

        graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
        graphs[0].register_generator_state(default.graphsafe_get_state())
        graphs[0].register_generator_state(default.clone_state())
        note()
        with torch.cuda.graph(graphs[0]):
            x.uniform_()
        note()
        with torch.cuda.graph(graphs[1]):
            x.mul_(2)
        note()
        graphs[0].reset()
        note()
        del graphs[0]
        note()
        graphs.clear()
        note()
        assert taken == blocks


def test_a_cards_generator_has_a_state_of_sixteen_bytes(gpu):
    torch.cuda.manual_seed(7)
    state = torch.cuda.get_rng_state()
    assert (state.numel(), torch.cuda.initial_seed()) == (16, 7)
    torch.cuda.manual_seed(8)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 7
