"""Streams: backward's allocations, events and processes.

The streams and sizes are those of torch 2.13's CUDA build, run without a card.
"""

import pytest
import torch

from nbmem.core.errors import UsageError

CARD = "cuda"


@pytest.fixture
def taken(gpu):
    """Return new allocations by stream, without workspaces."""
    torch.cuda.memory._record_memory_history(context=None)
    seen = [0]

    def since():
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
        new = [e for e in trace[seen[0] :] if e["action"] == "alloc" and e["size"] < 1 << 20]
        seen[0] = len(trace)
        return [(entry["size"], entry["stream"]) for entry in new]

    yield since
    torch.cuda.memory._record_memory_history(None)


def _leaf():
    return torch.randn(64, 64, device=CARD, requires_grad=True)


def test_a_nodes_backward_runs_on_its_forwards_stream(taken):
    x, w, side = _leaf(), _leaf(), torch.cuda.Stream()
    s = side.cuda_stream
    with torch.cuda.stream(side):
        y = (x @ w).relu()
    loss = (y * 2).sum()
    taken()
    loss.backward()
    # The root; the gradient of the product with 2; on the side: of relu, of both matrices.
    assert taken() == [(4, 0), (16384, 0), (16384, s), (16384, s), (16384, s)]


def test_a_backward_called_on_another_stream_runs_where_its_forward_ran(taken):
    x, w = _leaf(), _leaf()
    loss = (x @ w).exp().sum()
    side = torch.cuda.Stream()
    taken()
    with torch.cuda.stream(side):
        loss.backward()
        assert torch.cuda.current_stream() == side
    assert taken() == [(4, side.cuda_stream), (16384, 0), (16384, 0), (16384, 0)]


def test_a_function_sees_the_stream_of_its_forward(gpu):
    side, inner, seen = torch.cuda.Stream(), torch.cuda.Stream(), []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.cuda.current_stream())
            with torch.cuda.stream(inner):
                seen.append(torch.cuda.current_stream())
            seen.append(torch.cuda.current_stream())
            return grad * 2

    with torch.cuda.stream(side):
        y = Seen.apply(_leaf())
    y.sum().backward()
    assert seen == [side, inner, side]
    assert torch.cuda.current_stream().cuda_stream == 0


def _streams_seen(leaf):
    """Register hooks on a leaf; return the list of their streams."""
    seen = []
    look = lambda *_: seen.append(torch.cuda.current_stream().cuda_stream)  # noqa: E731
    leaf.register_hook(look)
    leaf.register_post_accumulate_grad_hook(look)
    return seen


def test_a_leafs_hooks_run_on_the_stream_of_its_first_use_as_long_as_a_graph_has_it(gpu):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = _leaf()
    seen = _streams_seen(x)
    kept = x.clone()  # before any change of stream
    with torch.cuda.stream(first):
        (x * 2 + kept).sum().backward()
    assert seen == [0, 0]
    del kept
    with torch.cuda.stream(first):
        kept = x * 3
    with torch.cuda.stream(second):
        (x * 2).sum().backward()
    assert seen[2:] == [first.cuda_stream] * 2
    del kept  # its node goes with the last graph
    with torch.cuda.stream(second):
        (x * 2).sum().backward()
    assert seen[4:] == [second.cuda_stream] * 2


def test_a_stream_that_a_leafs_hook_enters_is_left_behind_the_leaf(gpu):
    side, inner = torch.cuda.Stream(), torch.cuda.Stream()
    x, y = _leaf(), _leaf()
    x.register_hook(lambda _: torch.cuda.set_stream(inner))
    seen_x, seen_y = _streams_seen(x), _streams_seen(y)
    with torch.cuda.stream(side):
        loss = (x * 2 + y).sum()
    loss.backward()
    assert (seen_x, seen_y) == ([inner.cuda_stream] * 2, [side.cuda_stream] * 2)
    assert torch.cuda.current_stream().cuda_stream == 0


def test_a_leaf_on_the_cpu_and_a_forward_inside_backward_have_their_callers_stream(gpu):
    from torch.utils.checkpoint import checkpoint

    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    on_cpu, x, w = torch.randn(4, 4, requires_grad=True), _leaf(), _leaf()
    seen, seen_w = _streams_seen(on_cpu), _streams_seen(w)
    with torch.cuda.stream(side):
        y = on_cpu.to(CARD).sum() + checkpoint(lambda v: v * w, x, use_reentrant=True).sum()
    with torch.cuda.stream(other):
        y.backward()
    assert (seen, seen_w) == ([other.cuda_stream] * 2, [side.cuda_stream] * 2)


def test_a_product_copies_what_cublas_cannot_step_through(taken):
    layer, x = torch.nn.Linear(64, 64, device=CARD), _leaf()
    loss = layer(x).sum()
    taken()
    loss.backward()  # the gradient is one number, expanded
    assert [size for size, _ in taken()] == [4, 16384, 16384, 16384, 16384, 256]


@pytest.mark.parametrize(
    ("release", "blocks"), [("2.12", [32 << 20, 1 << 20]), ("2.13", [32 << 20])]
)
def test_cublaslt_shares_cublas_workspace_since_2_13(release, blocks):
    from nbmem import virtual

    with virtual.activated("H100", release=release) as gpu:
        layer, x = torch.nn.Linear(64, 64, device=CARD), torch.ones(8, 64, device=CARD)
        before = gpu.allocator.allocated
        y = layer(x)
        assert gpu.allocator.allocated - before == y.nbytes + sum(blocks)


def test_events_and_streams_are_torchs_own_by_class(gpu):
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    assert torch.Stream in type(stream).mro()
    assert torch.Event in type(event).mro()
    assert (event.event_id, event.query(), repr(event)) == (
        0,
        True,
        "<torch.cuda.Event uninitialized>",
    )
    assert torch.cuda.ExternalStream(stream.cuda_stream) == stream
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(event)


def test_a_sleep_is_done_when_somebody_waits_for_it(gpu):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(1 << 40)  # minutes
    end.record()
    assert not end.query()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 1000


def test_waiting_for_one_stream_skips_its_time_alone(gpu):
    short, long = torch.cuda.Stream(), torch.cuda.Stream()
    with short:
        torch.cuda._sleep(1 << 40)
    with long:
        torch.cuda._sleep(1 << 42)
    middle = short.record_event()
    torch.cuda.Event.wait(middle)  # the current stream: it waits for `short`
    assert not torch.cuda.current_stream().query()
    torch.cuda.current_stream().synchronize()
    assert short.query()
    assert middle.query()
    assert not long.query()
    long.record_event().synchronize()
    assert long.query()


def test_a_stream_is_entered_twice(gpu):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    default = torch.cuda.current_stream()
    with first:
        with second, first:
            assert torch.cuda.current_stream() == first
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_stream() == default


def test_a_card_is_not_shared_with_another_process(gpu):
    queue = torch.multiprocessing.Queue()
    with pytest.raises(UsageError, match="in one process alone"):
        queue.put({"batch": [torch.ones(3, device=CARD)]})
    queue.close()
    left, right = torch.multiprocessing.Pipe()
    with pytest.raises(UsageError, match="in one process alone"):
        left.send(torch.ones(3, device=CARD))
    del gpu, right


def test_what_the_allocator_does_not_know_is_a_runtime_error(gpu):
    with pytest.raises((RuntimeError, ValueError), match="no setting 'foo'"):
        torch._C._accelerator_setAllocatorSettings("foo:1")
    with pytest.raises((RuntimeError, ValueError), match="must be True or False"):
        torch._C._accelerator_setAllocatorSettings("pinned_use_cuda_host_register:none")
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
        torch.empty(1 << 61, dtype=torch.int8, device=CARD)


def test_what_is_registered_with_the_runtime_is_pinned(gpu):
    tensor, runtime = torch.ones(20), torch.cuda.cudart()
    assert runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0) == 0
    assert tensor.is_pinned()
    runtime.cudaHostUnregister(tensor.data_ptr())
    assert not tensor.is_pinned()
    assert torch.ones(4, device=CARD).to("cpu", non_blocking=True).is_pinned()
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)
