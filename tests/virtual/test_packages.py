"""Rules for packages: allocations of their compiled modules."""

# ruff: noqa: FBT003 - arguments as the modules have them
import ctypes
import importlib
import types

import pytest
import torch

from nbmem import virtual
from nbmem.virtual.packages import torchvision
from nbmem.virtual.packages.bitsandbytes import CONTEXT, PassingLibrary
from nbmem.virtual.packages.deepspeed import accept_on_card, as_here
from nbmem.virtual.split_kv import num_splits

HALF = torch.bfloat16
FLOAT = torch.float32


def some(*size, dtype=HALF):
    return torch.empty(size, dtype=dtype, device="cuda")


def measure_call(call):
    """Return a call's peak, the bytes left, and its results."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = call()
    peak, left = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    return peak - before, left - before, results


def test_flash_attention_forward_and_backward(gpu):
    flash = importlib.import_module("flash_attn_2_cuda")
    q, k, v = some(2, 512, 8, 64), some(2, 512, 2, 64), some(2, 512, 2, 64)
    options = 0.0, 0.125, True, -1, -1, 0.0
    peak, left, results = measure_call(
        lambda: flash.fwd(q, k, v, None, None, *options, False, None),
    )
    out, lse, softmax, state = results
    assert (out.size(), lse.size(), softmax.size(), state.size()) == (
        (2, 512, 8, 64),
        (2, 8, 512),
        (0,),
        (2,),
    )
    result, sums, keys = 2 * 512 * 8 * 64 * 2, 2 * 8 * 512 * 4, 2 * 512 * 2 * 64 * 2
    assert left == result + sums + 512  # the generator's state takes a block of the smallest size
    # 2 texts of 8 heads and 8 blocks of 64 queries occupy 128 of 264: two parts of the keys.
    parts = 2 * (2 * 8 * 512) * 4 + 2 * (2 * 8 * 512 * 64) * 4
    assert peak == left + parts
    peak, left, grads = measure_call(
        lambda: flash.bwd(
            out, q, k, v, out, lse, None, None, None, None, *options, False, None, state
        )
    )
    assert [grad.size() for grad in grads[:3]] == [q.size(), k.size(), v.size()]
    assert left == result + 2 * keys + sums
    spread = 2 * 512 * 8 * 64 * 4 + 2 * result  # a sum of the queries' gradient, keys of each head
    assert peak == left + spread


def test_flash_attention_of_texts_of_unequal_lengths(gpu):
    flash = importlib.import_module("flash_attn_2_cuda")
    q, starts = some(300, 4, 64), torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    _, left, (out, lse, softmax, state) = measure_call(
        lambda: flash.varlen_fwd(
            q,
            q,
            q,
            None,
            starts,
            starts,
            None,
            None,
            None,
            None,
            200,
            200,
            0.0,
            0.125,
            False,
            True,
            -1,
            -1,
            0.0,
            False,
            None,
            0,
        )
    )
    assert (lse.size(), softmax.numel()) == ((4, 300), 0)
    assert left == 300 * 4 * 64 * 2 + 5120 + 512
    _, _, (dq, _, _, sums) = measure_call(
        lambda: flash.varlen_bwd(
            out,
            q,
            q,
            q,
            out,
            lse,
            None,
            None,
            None,
            starts,
            starts,
            None,
            200,
            200,
            0.0,
            0.125,
            False,
            True,
            -1,
            -1,
            0.0,
            False,
            None,
            state,
        )
    )
    assert (dq.size(), sums.size()) == (q.size(), (4, 300 + 2 * 128))


def test_one_query_of_many_heads_is_turned_and_its_keys_are_cut(gpu):
    flash = importlib.import_module("flash_attn_2_cuda")
    cache = some(2, 4096, 2, 64)
    _, _, (out, lse) = measure_call(
        lambda: flash.fwd_kvcache(
            some(2, 1, 8, 64), cache, cache, *[None] * 10, 0.125, True, -1, -1, 0.0, True, 0
        )
    )
    assert (out.size(), lse.size()) == ((2, 1, 8, 64), (2, 8, 1))
    assert num_splits(4, 264, 16, 128) == 16  # as many as there are blocks of keys
    assert num_splits(212, 264, 16, 128) == 1  # the card is full without


def test_flash_attention_is_refused_where_it_does_not_run():
    with virtual.activated("T4"):
        flash = importlib.import_module("flash_attn_2_cuda")
        q = some(1, 8, 2, 64)
        with pytest.raises(RuntimeError, match="only supports Ampere GPUs or newer"):
            flash.fwd(q, q, q, None, None, 0.0, 0.125, True, -1, -1, 0.0, False, None)


def test_selective_scan_keeps_a_state_for_each_chunk(gpu):
    scan = importlib.import_module("selective_scan_cuda")
    real = torch.float32
    u, delta, z = (some(2, 64, 4096, dtype=HALF) for _ in range(3))
    a, b = some(64, 16, dtype=real), some(2, 1, 16, 4096)
    _, left, (out, states, gated) = measure_call(
        lambda: scan.fwd(u, delta, a, b, b, None, z, None, True),
    )
    assert states.size() == (2, 64, 2, 32)
    assert left == 2 * out.numel() * 2 + states.numel() * 4
    peak, left, grads = measure_call(
        lambda: scan.bwd(u, delta, a, b, b, None, z, None, out, states, out, None, True, False)
    )
    assert [None if grad is None else grad.dtype for grad in grads] == [
        HALF, HALF, real, HALF, HALF, None, None, HALF
    ]  # fmt: skip
    assert gated.size() == z.size()
    assert peak > left  # the gradients of b and c are summed in float32


@pytest.mark.parametrize(("by_channels", "parts"), [(False, 2), (True, 2 * 2)])
def test_causal_convolution_has_a_place_for_each_part_of_a_sum(
    gpu, monkeypatch, by_channels, parts
):
    convolution = importlib.import_module("causal_conv1d_cuda")
    x = some(2, 256, 64).transpose(1, 2) if by_channels else some(2, 64, 256)
    weight, bias = some(64, 4), some(64)
    grads = some(64, 4, dtype=torch.float32), some(64, dtype=torch.float32)

    def backward():
        convolution.causal_conv1d_bwd(
            x, weight, bias, x, None, None, None, torch.empty_like(x), *grads, None, True
        )

    assert measure_call(backward)[0] == x.numel() * 2
    monkeypatch.setenv("CAUSAL_CONV1D_DETERMINISTIC", "1")
    assert measure_call(backward)[0] >= x.numel() * 2 + parts * 64 * 4 * 4


class Compiled:
    """A fake C library of bitsandbytes."""

    compiled_with_cuda = True

    def cadam(self, *arguments):
        return ["the library itself", *arguments]


def test_bitsandbytes_functions_pass_while_a_card_is_active(gpu):
    library = PassingLibrary(Compiled())
    assert library.compiled_with_cuda
    library.cadam.argtypes = [ctypes.c_void_p]
    assert library.cadam.argtypes == [ctypes.c_void_p]
    assert library.cadam(1, 2) == 0
    assert library.get_context() == CONTEXT
    address = library.cget_managed_ptr(ctypes.c_size_t(64))
    assert (ctypes.c_char * 64).from_address(address).raw == bytes(64)
    virtual.deactivate()
    assert library.cadam(1, 2) == ["the library itself", 1, 2]


def test_bitsandbytes_library_is_replaced_where_it_is_imported(monkeypatch):
    module = types.ModuleType("bitsandbytes.cextension")
    module.lib = compiled = Compiled()
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    with virtual.activated("H100"):
        assert isinstance(module.lib, PassingLibrary)
    assert module.lib is compiled


def test_ranks_of_deepspeed_agree_while_a_card_is_active():
    def disagree(ints):
        raise RuntimeError(f"Detected a disagreement on {ints}")

    asked = []
    rank0_has = as_here(lambda ints: asked.append(ints) or [-1] * len(ints))
    with virtual.activated("H100"):
        assert rank0_has([3, 4]) == [3, 4]
        accept_on_card(disagree)([3, 4])
    assert asked == [[3, 4]]  # what the question takes, it takes
    assert rank0_has([3, 4]) == [-1, -1]
    with pytest.raises(RuntimeError, match="disagreement"):
        accept_on_card(disagree)([3, 4])


def test_torchvisions_deformed_convolutions_gather_their_points(gpu):
    operators = torchvision.RULES.operators
    x, weight = some(6, 8, 16, 16, dtype=FLOAT), some(4, 8, 3, 3, dtype=FLOAT)
    offset, mask = some(6, 18, 16, 16, dtype=FLOAT), some(6, 9, 16, 16, dtype=FLOAT)
    bias, options = some(4, dtype=FLOAT), (1, 1, 1, 1, 1, 1, 1, 1, True)
    torch.mm(weight.flatten(1), weight.flatten(1).t())  # cuBLAS has its workspace
    whole, columns = 6 * 4 * 256 * 4, 8 * 9 * 6 * 256 * 4
    peak, left, made = measure_call(
        lambda: operators["torchvision::deform_conv2d"](x, weight, offset, mask, bias, *options)
    )
    assert (peak, left, made.size()) == (3 * whole + columns, whole, (6, 4, 16, 16))
    peak, left, grads = measure_call(
        lambda: operators["torchvision::_deform_conv2d_backward"](
            made, x, weight, offset, mask, bias, *options
        )
    )
    assert [grad.size() for grad in grads] == [t.size() for t in (x, weight, offset, mask, bias)]
    kept = sum(t.numel() * 4 for t in (x, offset, mask))
    filters = 1536  # 288 numbers, in blocks of 512
    assert peak == kept + columns + whole + filters  # the gradient is laid out by channels


def test_torchvisions_boxes_have_their_gradient_laid_out(gpu):
    backward = torchvision.RULES.operators["torchvision::_ps_roi_align_backward"]
    grad, rois = some(1, dtype=FLOAT).expand(64, 2, 4, 4), some(64, 5, dtype=FLOAT)
    peak, left, made = measure_call(
        lambda: backward(grad, rois, None, 1.0, 4, 4, -1, 2, 32, 16, 16)
    )
    assert (made.size(), left) == ((2, 32, 16, 16), 2 * 32 * 256 * 4)
    assert peak == left + 64 * 2 * 16 * 4


def test_products_in_place_take_cublas_workspace(gpu):
    calls = (
        lambda: some(8, 8).addmm_(some(8, 8), some(8, 8)),
        lambda: some(2, 8, 8).baddbmm_(some(2, 8, 8), some(2, 8, 8)),
        lambda: some(8).addmv_(some(8, 8), some(8)),
        lambda: torch.mv(some(8, 8), some(8), out=some(8)),
    )
    for call in calls:
        with virtual.activated("H100"):
            call()
            assert torch.cuda.memory_allocated() == 32 << 20
