"""CUDA's autocast on the virtual card, with torch's bytes."""

import re

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from nbmem.virtual.patches.autograd import autocast


def test_every_operator_that_torch_casts_is_known():
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    named = re.compile(r"imname|\.names_")  # overloads for named dimensions, gone in torch 2.13
    torchs = {name for name in registered if name.startswith("aten::") and not named.search(name)}
    tables = (
        autocast.LOWER, autocast.FLOAT32, autocast.FLOAT32_RESULT, autocast.FLOAT32_OVERLOAD,
        autocast.WIDEST, autocast.RECURRENT,
    )  # fmt: skip
    ours = {f"aten::{name}" for table in tables for name in table}
    assert torchs - ours == {"aten::binary_cross_entropy"}  # torch's own kernel refuses it


@pytest.mark.parametrize(
    ("call", "taken", "meanwhile"),
    [
        pytest.param(
            lambda x: F.rms_norm(x, (1024,)),
            4 << 18,
            (8 << 18) + 1024,  # a float32 copy and the factors of 256 rows
            marks=pytest.mark.skipif(
                not autocast.has_autocast_kernel(torch.ops.aten.rms_norm.default),
                reason="this torch does not cast it",
            ),
        ),
        (lambda x: x.norm(dim=1), 1024, 1024),
        (lambda x: torch.linalg.vector_norm(x, dim=1), 1024, 1024),
        (lambda x: torch.cat([x, x.float()]), 8 << 18, 12 << 18),  # cat itself takes mixed types
    ],
)
def test_half_types_become_float32_where_torch_casts(gpu, call, taken, meanwhile):
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        result = call(x)
    assert result.dtype is torch.float32
    assert torch.cuda.memory_allocated() - before == taken
    assert torch.cuda.max_memory_allocated() - before == meanwhile


def test_casts_of_weights_are_kept_but_in_inference_mode(gpu):
    linear = torch.nn.Linear(1024, 512, device="cuda")
    x = torch.randn(256, 1024, device="cuda")
    linear(x)  # cuBLAS has its workspaces

    def kept(mode):
        before = torch.cuda.memory_allocated()
        with mode(), torch.autocast("cuda", torch.bfloat16):
            linear(x)
            return torch.cuda.memory_allocated() - before

    assert kept(torch.no_grad) == 1024 * 512 * 2 + 1024
    assert kept(torch.inference_mode) == (0 if torch.__version__ >= "2.11" else 1024 * 513 * 2)


def test_a_librarys_boxes_are_taken_in_float32_and_their_results_go_back(gpu):
    """torchvision's C++ does so till 0.27; it knows a card's tensors by a key that is not ours."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    if "torchvision::roi_pool" in torch._C._dispatch_get_all_op_names():
        pytest.skip("torchvision itself is loaded")
    library.define("roi_pool(Tensor input, Tensor rois) -> (Tensor, Tensor)")
    kernel = torch.library.Library("torchvision", "IMPL")
    kernel.impl("roi_pool", lambda x, rois: (x + rois, x.long()), "CompositeExplicitAutograd")
    kernel.impl("roi_pool", lambda *_: None, "AutocastCUDA")
    torch.ops.load_library(torch._C.__file__)  # as its package does
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    rois = torch.randn(256, 1024, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        pooled, places = torch.ops.torchvision.roi_pool(x, rois)
    assert (pooled.dtype, places.dtype) == (torch.bfloat16, torch.int64)
    kernel._destroy()
    library._destroy()
