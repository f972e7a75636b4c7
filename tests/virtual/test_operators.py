"""Operators without a shape rule, or with another one on CUDA."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem.virtual.tensors.operator_call import facts_of, operator_of


def some(*size):
    return torch.randn(*size, device="cuda", requires_grad=True)


def labels(*size):
    return torch.randint(1, 4, size, device="cuda")


def ctc(lengths):
    log_probs = some(20, 3, 6).log_softmax(2)
    return F.ctc_loss(log_probs, labels(3, 5), lengths(20), lengths(5))


PROGRAMS = {
    "CTC loss": lambda: ctc(lambda n: torch.full((3,), n)),
    "CTC loss, lengths on the card": lambda: ctc(lambda n: torch.full((3,), n, device="cuda")),
    "multi-margin loss": lambda: F.multi_margin_loss(some(4, 5), labels(4)),
    "multilabel margin loss": lambda: F.multilabel_margin_loss(some(4, 5), labels(4, 5)),
    "fractional pooling": lambda: F.fractional_max_pool3d(some(1, 2, 6, 6, 6), 2, output_size=3),
    "logcumsumexp": lambda: some(4, 5).logcumsumexp(1),
    "extrema": lambda: torch.aminmax(some(3, 5), dim=1).max,
    "least squares": lambda: torch.linalg.lstsq(some(5, 3), some(5, 2)).solution,
    "matrix exponential": lambda: torch.linalg.matrix_exp(some(4, 4)),
    "orthogonal weights": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)).cuda()(
        some(2, 4)
    ),
    "a Dirichlet sample": lambda: torch.distributions.Dirichlet(some(4).exp()).rsample(),
    "fake quantization": lambda: torch.fake_quantize_per_tensor_affine(some(4), 0.1, 0, -8, 7),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operator_runs_forward_and_backward(gpu, name):
    result = PROGRAMS[name]()
    assert result.is_cuda
    if name == "extrema" and result.grad_fn.name().endswith("NotImplemented"):
        pytest.skip("this release of torch has no derivative of aminmax")
    result.sum().backward()


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss])
def test_a_mean_loss_keeps_the_storage_of_its_terms(gpu, loss):
    def kept(x, y):
        result = loss(x, y)
        assert result.size() == ()
        return result.untyped_storage().nbytes()

    assert kept(torch.randn(64, 8), torch.randn(64, 8)) == 64 * 8 * 4  # the real code, on the CPU
    x, y = some(64, 8).detach(), some(64, 8).detach()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert kept(x, y) == 64 * 8 * 4
    assert torch.cuda.max_memory_allocated() - before == 2 * 64 * 8 * 4


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_rms_norm_is_one_kernel_in_a_build_without_cuda_too(gpu, mode):
    kernel = operator_of("_fused_rms_norm")
    if kernel is None or facts_of(kernel).composite:
        pytest.skip("this torch has no shape rule for the kernel")
    x, weight = some(256, 1024), some(1024)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with mode():
        result = F.rms_norm(x, (1024,), weight)
    kept = (4 << 18) + (1024 if result.requires_grad else 0)  # a factor for each row
    assert torch.cuda.memory_allocated() - before == kept
    assert torch.cuda.max_memory_allocated() - before == (4 << 18) + 1024
    if result.requires_grad:
        result.sum().backward()
        assert (x.grad.size(), weight.grad.size()) == (x.size(), weight.size())


def test_grouped_products_take_float32_as_cuda_does(gpu):
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped products")
    rows, weights = some(8, 16), some(2, 6, 16).transpose(1, 2)
    ends = torch.tensor([3, 8], dtype=torch.int32, device="cuda")
    result = torch._grouped_mm(rows, weights, offs=ends)
    assert result.size() == (8, 6)
    assert result.stride() == (8, 1)  # rows of 16 bytes


def test_a_padded_transformer_runs_on_its_fast_path(gpu):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).cuda().eval()
    padding = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        assert model(some(2, 5, 16).detach(), src_key_padding_mask=padding).size() == (2, 5, 16)


def test_forward_mode_derivatives_in_a_process_that_had_none():
    code = """
import torch
from nbmem import virtual
virtual.activate("H100")
x = torch.randn(3, 4, device="cuda")
layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).cuda()
print(torch.func.jacfwd(layer)(x).size())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([3, 4, 3, 4])", done.stderr


def test_nms_keeps_every_box_and_says_so(gpu):
    ops = pytest.importorskip("torchvision.ops", reason="torchvision's own operator")
    boxes = torch.rand(10, 4, device="cuda")
    assert ops.nms(boxes, torch.rand(10, device="cuda"), 0.5).size() == (10,)
    assert any("How many boxes nms keeps" in note for note in gpu.notes)
