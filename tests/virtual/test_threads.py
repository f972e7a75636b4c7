"""Several threads on one virtual card; thread_stress.py runs longer."""

import gc
import sys
import threading

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.runtime.garbage_collector import instances
from nbmem.core.session.categories import Category
from nbmem.virtual.hardware import deferred_free
from nbmem.virtual.operator_model.autograd_differences import runs
from tests.virtual import thread_stress

ROUNDS = 10


@pytest.mark.parametrize("traced", [False, True])
def test_threads_take_together_what_each_takes_alone(gpu, traced):
    torch.zeros(1, device="cuda")
    problems = [
        problem
        for seed in range(1 if traced else 2)
        for problem in thread_stress.run(seed, threads=4, steps=2, traced=traced)
    ]
    assert not problems, "\n".join(problems)


def test_blocks_may_be_freed_at_any_moment_while_others_are_freed(gpu):
    """As other threads let go of tensors: here one at each instruction of the loop."""
    held = [torch.ones(1, device="cuda") for _ in range(50 * ROUNDS)]

    def let_go(frame, _event, _arg):
        if frame.f_code.co_filename == deferred_free.__file__:
            frame.f_trace_opcodes = True
            held[-1:] = []
        return let_go

    before = sys.gettrace()
    sys.settrace(let_go)
    try:
        del held[0]
        torch.cuda.memory_allocated()
    finally:
        sys.settrace(before)
    assert len(held) < 40 * ROUNDS
    assert torch.cuda.memory_allocated() == 512 * len(held)


def test_what_a_finalizer_wants_of_the_allocator_at_work_is_done_behind_it(gpu):
    held = torch.ones(1 << 20, device="cuda")
    del held
    wanted = []
    true_malloc = gpu._allocator.malloc

    def malloc(size, stream):
        gpu._allocator.malloc = true_malloc
        torch.cuda.empty_cache()  # as a finalizer does that the collector calls just here
        wanted.append(gpu.process_bytes)
        with pytest.raises(RuntimeError, match="Cannot allocate on the virtual GPU"):
            gpu.take(512)
        return true_malloc(size, stream)

    gpu._allocator.malloc = malloc
    small = torch.ones(1, device="cuda")
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (512, 2 << 20)
    assert wanted
    del small


def test_threads_have_streams_and_leaves_of_their_own(gpu):
    """The first change of stream looks at no other thread's tensors."""
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    kept = leaf * 2
    seen = []
    leaf.register_hook(lambda _: seen.append(torch.cuda.current_stream().cuda_stream))

    def other():
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = torch.ones(3, device="cuda", requires_grad=True)
            (mine * 2).sum().backward()

    before = kept.grad_fn.next_functions[0][0].metadata.copy()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert kept.grad_fn.next_functions[0][0].metadata == before
    kept.sum().backward()
    assert seen == [0]


class _Marked:
    pass


def test_objects_are_listed_while_nothing_else_is_referred_to():
    """Another thread's half-filled tuple would have one reference too many."""
    marked = [_Marked() for _ in range(ROUNDS)]
    other = [object()]
    counts = set()

    def watch(frame, _event, _arg):
        frame.f_trace_opcodes = True
        counts.add(sys.getrefcount(other))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        found = instances([_Marked])
    finally:
        sys.settrace(before)
    assert counts == {sys.getrefcount(other)}
    assert len(counts) == 1
    assert sorted(map(id, found)) == sorted(map(id, marked))
    gc.collect()


def test_a_backward_of_one_thread_is_none_of_anothers(gpu):
    """What is added in place inside of one thread's pass is not added so in another thread."""
    inside, done, found = threading.Event(), threading.Event(), []
    x = torch.ones(64, device="cuda", requires_grad=True)

    def wait(grad):
        inside.set()
        done.wait(30)
        return grad

    x.register_hook(wait)
    thread = threading.Thread(target=lambda: (x * 2).sum().backward())
    thread.start()
    inside.wait(30)
    found.extend(runs.stack)
    done.set()
    thread.join()
    assert found == []
    assert x.grad is not None


@pytest.mark.parametrize("name", ["T4", "H100"])
def test_each_threads_workspace_has_its_name(name):
    with virtual.activated(name) as gpu:
        _train_in_threads(gpu, 3)


def _train_in_threads(gpu, count):
    barrier = threading.Barrier(count)

    def train():
        layer = torch.nn.Linear(64, 64).cuda()
        for _ in range(2):
            layer(torch.ones(8, 64, device="cuda")).sum().backward()
            layer.zero_grad()
            barrier.wait()

    with nbmem.trace("threads") as trace:
        threads = [threading.Thread(target=train) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    at_end = trace.report().ledger_at_end
    assert at_end[Category.WORKSPACE] == torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == (count + 1) * gpu.workspaces.cublas_size
