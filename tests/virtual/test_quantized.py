"""Quantized tensors: bytes and errors of the oracle (2.13, H100)."""

import copy
import io
import re
import sys

import pytest
import torch
from torch.nn import functional

from nbmem import virtual
from nbmem.core.errors import UsageError

FLOATS = 4 * 3 * 16 * 16
CPU_LIKE = "Could not run 'aten::{}.*' with arguments from the 'QuantizedCUDA' backend"


@pytest.fixture
def x(gpu):
    return torch.zeros(4, 3, 16, 16, device="cuda")


@pytest.fixture
def q(x):
    return torch.quantize_per_tensor(x, 0.1, 2, torch.quint8)


@pytest.fixture
def rows(x):
    weight = torch.zeros(1000, 512, device="cuda")
    zeros = torch.zeros(1000, dtype=torch.int32, device="cuda")
    return torch.quantize_per_channel(
        weight, torch.ones(1000, device="cuda"), zeros, 0, torch.qint8
    )


def memory_cost(function):
    """Return a call's remaining bytes, peak and requests."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    count = torch.cuda.memory_stats()["allocation.all.allocated"]
    made = function()
    left = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del made
    return left, peak, torch.cuda.memory_stats()["allocation.all.allocated"] - count


def test_a_quantized_tensor_takes_a_byte_for_each_element(q, rows):
    assert (q.dtype, q.is_quantized, q.device.type) == (torch.quint8, True, "cuda")
    assert q.untyped_storage().nbytes() == FLOATS
    assert (q.q_scale(), q.q_zero_point(), q.qscheme()) == (0.1, 2, torch.per_tensor_affine)
    assert rows.q_per_channel_scales().dtype is torch.float64
    assert rows.q_per_channel_zero_points().dtype is torch.int64
    assert (rows.q_per_channel_axis(), rows.qscheme()) == (0, torch.per_channel_affine)
    assert q.int_repr().dtype is torch.uint8


@pytest.mark.parametrize(("code", "bytes_and_requests"), [
    ("torch.quantize_per_tensor(w, 0.1, 2, torch.qint32)", (2048000, 2048000, 1)),
    ("torch.quantize_per_tensor(w.t(), 0.1, 2, torch.qint8)", (512000, 2560000, 2)),
    ("torch.quantize_per_channel(w, s, z, 0, torch.qint8)", (528384, 529920, 7)),
    ("rows.dequantize()", (2048000, 2049536, 5)),
    ("q.dequantize()", (12288, 12288, 1)),
    ("torch.relu(q)", (3072, 12288, 5)),
    ("functional.gelu(q)", (3072, 27648, 3)),
    ("functional.adaptive_avg_pool2d(q, 1)", (512, 13312, 3)),
    ("q.max(1)", (9216, 12288, 4)),
    ("q.clone().fill_(1.0)", (3072, 15360, 2)),
    ("q[0]", (0, 0, 0)),
    ("q.permute(0, 2, 3, 1).contiguous()", (3072, 3072, 1)),
    ("q.flip(0)", (3072, 3072, 1)),
])  # fmt: skip
def test_kernels_take_what_they_take_on_a_card(q, rows, code, bytes_and_requests):
    names = {"q": q, "rows": rows, "functional": functional, "torch": torch}
    names["w"] = torch.zeros(1000, 512, device="cuda")
    names["s"] = torch.ones(1000, device="cuda")
    names["z"] = names["s"].int()
    assert memory_cost(lambda: eval(code, names)) == bytes_and_requests


def test_a_view_has_the_same_memory_and_scale(q):
    for seen in (q[1], q.view(-1), q.flatten(1), q.transpose(0, 1), q.chunk(2)[1], q.detach()):
        assert seen.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
        assert (seen.is_quantized, seen.q_scale()) == (True, 0.1)
    assert q[1].data_ptr() == q.data_ptr() + FLOATS // 4


def test_a_quantized_tensor_moves_to_the_cpu_and_back_and_to_a_file(q, rows, monkeypatch):
    for name in [name for name in sys.modules if re.fullmatch(r"transformers\..*_fast", name)]:
        # pickle asks all modules for `per_tensor_affine`; these import torchvision then, and fail.
        monkeypatch.delitem(sys.modules, name)
    there = torch.quantize_per_tensor(torch.randn(8, 8), 0.5, 1, torch.qint8).cuda()
    assert (there.device.type, there.q_scale(), there.q_zero_point()) == ("cuda", 0.5, 1)
    back = there.cpu()
    assert (back.device.type, back.q_scale(), back.dequantize().shape) == ("cpu", 0.5, (8, 8))
    for tensor in (q, rows):
        file = io.BytesIO()
        torch.save(tensor, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for same in (loaded, copy.deepcopy(tensor)):
            assert (same.dtype, same.device, same.size()) == (
                tensor.dtype, tensor.device, tensor.size(),
            )  # fmt: skip
            assert same.qscheme() is tensor.qscheme()
            assert same.data_ptr() != tensor.data_ptr()
    assert "quantization_scheme=torch.per_tensor_affine, scale=0.1" in str(q)
    assert "device='cuda:0'" in str(q)


@pytest.mark.parametrize(("code", "name"), [
    ("q + q", "add"), ("q * 2", "mul"), ("torch.cat([q, q])", "cat"), ("q == q", "eq"),
    ("q.float()", "_"), ("q.resize_(2)", "resize_"), ("q.max()", "max"),
    ("torch.equal(q, q)", "equal"), ("functional.avg_pool2d(q, 2)", "avg_pool2d"),
])  # fmt: skip
def test_what_no_card_runs_is_refused_in_torchs_words(q, code, name):
    with pytest.raises(NotImplementedError, match=CPU_LIKE.format(name)):
        eval(code, {"q": q, "torch": torch, "functional": functional})


def test_what_a_card_would_run_is_refused_in_a_sentence(q, x):
    with pytest.raises(UsageError, match="without a scale"):
        torch.empty(4, dtype=torch.qint8, device="cuda")
    with pytest.raises(UsageError, match=r"cannot run quantized\.linear_prepack"):
        torch.ops.quantized.linear_prepack(q, None)
    with pytest.raises(RuntimeError, match="only works on Float Tensor, got Half"):
        torch.quantize_per_tensor(x.half(), 0.1, 0, torch.qint8)


def test_a_tensor_of_a_card_that_is_gone_says_so():
    with virtual.activated("T4"):
        q = torch.quantize_per_tensor(torch.zeros(4, device="cuda"), 0.1, 0, torch.qint8)
    for use in (lambda: q[0], q.dequantize, q.clone, lambda: q.view(2, 2)):
        with pytest.raises(RuntimeError, match="of a virtual card that is gone"):
            use()
