"""Operations that a capturing stream refuses."""

import pytest
import torch

MIB = 1 << 20
UNPINNED = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
BROKEN = "operation failed due to a previous error during capture"


def capture(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(torch.randn(8, device="cuda"))
    return graph


@pytest.mark.parametrize("copies", [
    lambda b: torch.empty(8).copy_(b, non_blocking=True),
    lambda b: b.copy_(torch.empty(8)),
    lambda b: b.cpu(),
    lambda b: torch.randn(3).cuda(),
    lambda b: torch.tensor(3.0, device="cuda"),
])  # fmt: skip
def test_a_capture_takes_no_memory_of_the_cpu_that_may_go(gpu, copies):
    with pytest.raises(RuntimeError, match=UNPINNED):
        capture(copies)
    capture(lambda b: b.mul_(2))


@pytest.mark.parametrize("waits", [
    lambda b: b.sum().item(),
    lambda b: bool((b > 0).all()),
    lambda b: b.nonzero(),
    lambda b: b[b > 0],
    lambda b: torch.equal(b, b + 1),
    lambda b: torch.empty(8).pin_memory().cuda(),
    lambda b: torch.cuda.synchronize(),
    lambda b: torch.cuda.current_stream().synchronize(),
])  # fmt: skip
def test_waiting_for_a_captured_stream_breaks_the_capture(gpu, waits):
    with pytest.raises(RuntimeError, match=BROKEN) as caught:
        capture(waits)
    assert "not permitted when stream is capturing" in str(caught.value.__context__)
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    capture(lambda b: b.mul_(2))


def test_what_the_card_does_by_itself_is_captured(gpu):
    at = torch.tensor([0, 1], device="cuda")
    mask = torch.rand(8, device="cuda") > 2
    pinned = torch.empty(8).pin_memory()
    for fine in (
        lambda b: b[at],
        lambda b: b.masked_fill_(mask, 0),
        lambda b: torch.repeat_interleave(at, output_size=1),
        lambda b: b.copy_(pinned, non_blocking=True),
        lambda b: pinned.cuda(non_blocking=True),
        lambda b: b.to("cpu", non_blocking=True),
    ):
        capture(fine)


@pytest.mark.parametrize("by", ["stream", "event"])
def test_a_stream_that_waits_for_a_captured_one_allocates_from_the_graphs_pool(gpu, by):
    kept = []

    def fork(b):
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        if by == "event":
            event.record()
            side.wait_event(event)
        else:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kept.append(torch.empty(MIB, device="cuda"))
            assert torch.cuda.is_current_stream_capturing()
        torch.cuda.current_stream().wait_stream(side)

    graph = capture(fork)
    [segment] = [s for s in torch.cuda.memory_snapshot() if s["total_size"] == 20 * MIB]
    assert segment["segment_pool_id"] == graph.pool()
    assert segment["active_size"] == 4 * MIB


def test_a_stream_apart_from_the_capture_is_not_captured(gpu):
    side = torch.cuda.Stream()

    def apart(b):
        with torch.cuda.stream(side):
            assert not torch.cuda.is_current_stream_capturing()
            torch.randn(8).cuda()

    capture(apart)
