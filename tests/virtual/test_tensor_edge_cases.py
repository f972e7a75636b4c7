"""Edge cases of tensors, as torch's CUDA build (2.13) has them."""

import pytest
import torch

from nbmem.virtual.patches.compiled.compiler import PLANNED

CUDA = "cuda"


def test_a_list_of_tensors_is_a_list_of_numbers(gpu):
    ours, cpus = torch.ones((), device=CUDA), torch.tensor(1.0)
    for numbers, size in (
        ([cpus, cpus], (2,)), ([cpus, ours], (2,)), ([1.0, ours], (2,)), ([ours, 1.0], (2,)),
        ([[ours] * 2] * 3, (3, 2)), ([torch.ones(1, device=CUDA)] * 2, (2,)),
    ):  # fmt: skip
        for made in (
            torch.tensor(numbers, device=CUDA),
            torch.as_tensor(numbers, device=CUDA),
            ours.new_tensor(numbers),
        ):
            assert (tuple(made.size()), made.dtype, made.is_cuda) == (size, torch.float32, True)
    assert torch.tensor([cpus, cpus]).device.type == "cpu"
    assert cpus.new_tensor([cpus, cpus]).tolist() == [1.0, 1.0]
    assert torch.tensor([torch.tensor(1, dtype=torch.int32, device=CUDA)] * 2).dtype is torch.int32
    assert (
        torch.tensor([torch.ones((), dtype=torch.float64, device=CUDA), 1]).dtype is torch.float64
    )
    with pytest.raises(ValueError, match="only one element tensors can be converted"):
        torch.tensor([torch.ones(2, device=CUDA)] * 2)


def test_storages_are_copied_and_filled(gpu):
    ours, other = torch.zeros(3, device=CUDA), torch.ones(3, device=CUDA)
    on_cpu = torch.ones(3)
    for source in (other, on_cpu):
        assert ours.untyped_storage().copy_(source.untyped_storage()).nbytes() == 12
    assert on_cpu.untyped_storage().copy_(ours.untyped_storage()).nbytes() == 12
    ours.untyped_storage()[0] = 3
    assert ours.untyped_storage().fill_(0).nbytes() == 12
    with pytest.raises(RuntimeError, match="self was 12 bytes but src was 16 bytes"):
        ours.untyped_storage().copy_(torch.ones(4, device=CUDA).untyped_storage())


def test_a_tensor_is_resized_like_another_and_emptied(gpu):
    assert torch.ones(4, device=CUDA).resize_as_(torch.ones(3, 3, device=CUDA)).nbytes == 36
    ours = torch.ones(1024, device=CUDA)
    held = torch.cuda.memory_allocated()
    ours.set_()
    assert (ours.numel(), torch.cuda.memory_allocated()) == (0, held - 4096)


def test_a_view_does_not_reach_beyond_its_storage(gpu):
    ours = torch.ones(4, device=CUDA)
    message = "requiring a storage size of 112 are out of bounds for storage of size 16"
    with pytest.raises(RuntimeError, match=message):
        ours.as_strided((10,), (3,))
    with pytest.raises(RuntimeError, match="storage size of 20"):
        ours.as_strided((2,), (1,), 3)
    assert ours.as_strided((2, 2), (1, 1), 1).size() == (2, 2)
    assert ours.as_strided((0,), (1,), 4).numel() == 0


def test_what_dlpack_does_not_hand_out_is_refused(gpu):
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(3, device=CUDA, requires_grad=True))
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.from_dlpack(torch.ones(3, dtype=torch.complex64, device=CUDA).conj())


@pytest.mark.skipif(not hasattr(torch, "cond"), reason="since torch 2.1")
def test_operators_that_are_given_functions_run_eagerly(gpu):
    scans = pytest.importorskip("torch._higher_order_ops.associative_scan")
    loops = pytest.importorskip("torch._higher_order_ops.while_loop")
    ours, yes = torch.ones(4, 3, device=CUDA), torch.tensor(True, device=CUDA)  # noqa: FBT003
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    chosen = torch.cond(yes, lambda x: x + 1, lambda x: x.cos(), (ours,))
    assert (chosen.dtype, torch.cuda.max_memory_allocated() - before) == (torch.float32, 512)
    summed = scans.associative_scan(torch.add, ours, dim=0, combine_mode="generic")
    assert summed.size() == (4, 3)
    [last] = loops.while_loop(lambda i: i < 3, lambda i: (i + 1,), (torch.tensor(0, device=CUDA),))
    assert int(last) == 3


@pytest.mark.skipif(not PLANNED, reason="this release's regions are not captured")
@pytest.mark.parametrize(("first", "peak"), [(True, 66_560), (False, 50_688)])
def test_branches_pass_gradients_to_their_variables(gpu, first, peak):
    ours, weight = (torch.ones(64, 64, device=CUDA, requires_grad=True) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    which = torch.tensor(first)
    chosen = torch.cond(which, lambda x: (x * weight).sin(), lambda x: x.cos(), (ours,))
    chosen.sum().backward()
    assert ours.grad.shape == weight.grad.shape
    # As torch's own CUDA code asks for it: tools/oracle.py --run.
    assert torch.cuda.memory_allocated() - before == 49_152
    assert torch.cuda.max_memory_allocated() - before == peak
