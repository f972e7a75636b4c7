"""When operators last used each block, counted by hand."""

import pytest

torch = pytest.importorskip("torch", reason="operators are torch's")

from nbmem.virtual.hardware.last_uses import LEAST_BYTES, LastUseLog

MIB_OF_FLOATS = 1 << 18


@pytest.fixture
def log(gpu):
    torch.ones(4, device="cuda")
    return LastUseLog(gpu)


def made(mib=1):
    return torch.ones(mib * MIB_OF_FLOATS, device="cuda")


def ends(log):
    """Return by address the events from the last use to the end, and whether it was a backward."""
    return {addr: (last, bool(back)) for addr, _, last, back in log.end()}


def test_an_operator_uses_what_it_reads_and_writes(log):
    idle, read, written = made(), made(), made()
    result = read + 1
    written.zero_()
    later = made()
    found = ends(log)
    # Five allocations at most lie behind the first one; segments count as events as well.
    assert set(found) == {one.data_ptr() for one in (idle, read, written, result)}
    assert found[idle.data_ptr()][0] > found[read.data_ptr()][0]
    assert found[read.data_ptr()] == found[written.data_ptr()] == found[result.data_ptr()]
    assert later.data_ptr() not in found, "nothing happened behind its allocation"


def test_what_is_freed_behind_its_last_use_is_as_well_known(log):
    x = made()
    addr = x.data_ptr()
    x.add_(1)
    kept = made(), made()
    del x
    kept += (made(),)
    ((found, since_made, since_used, back),) = (row for row in log.end() if row[0] == addr)
    assert (found, back) == (addr, 0)
    assert since_made == since_used > 3, "an event of its allocation is not behind it"


@pytest.mark.parametrize("use", [lambda x: x.view(-1).add_(1), lambda x: x[::2].sum()])
def test_a_view_uses_the_storage_of_its_base(log, use):
    x, idle, between = made(), made(), made()
    kept = use(x)
    last = made()
    found = ends(log)
    assert found[x.data_ptr()][0] < found[idle.data_ptr()][0]
    assert found[idle.data_ptr()][0] > found[between.data_ptr()][0]
    assert kept is not None
    assert last.data_ptr() not in found


def test_a_view_alone_uses_no_memory(log):
    x = made()
    view = x.view(-1)[:4]
    more = made()
    found = ends(log)
    assert x.data_ptr() in found
    assert len(view) == 4
    assert more.data_ptr() not in found


def test_uses_by_a_backward_are_marked(log):
    x = made().requires_grad_()
    with_graph, without = x * 2, x.detach() * 3
    squares = with_graph**2
    squares.sum().backward()
    kept = made()
    found = ends(log)
    assert found[with_graph.data_ptr()][1], "pow's formula reads what it saved"
    assert not found[without.data_ptr()][1]
    assert kept.data_ptr() not in found


def test_small_blocks_and_memory_of_kernels_are_left_out(log, gpu):
    small = torch.ones(LEAST_BYTES // 4 - 128, device="cuda")
    weights = torch.ones(256, 256, device="cuda")
    product = weights @ weights  # takes cuBLAS's workspace
    last = made()
    found = ends(log)
    assert found.keys() == {weights.data_ptr(), product.data_ptr()}
    assert len(small) + len(last) > 0
    assert gpu.last_uses is None


def test_a_kernel_that_is_no_operator_ends_the_knowledge(log, gpu):
    gpu.launch_unseen()
    assert not log.complete
