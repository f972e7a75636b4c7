"""Operators on empty and one-element tensors."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NAMES = (
    "amax", "aminmax", "bincount", "index_fill", "linalg.lstsq", "mvlgamma", "nanmean",
    "nn.functional.group_norm", "nn.functional.upsample_nearest", "to_sparse",
)  # fmt: skip
of_torch_2_13 = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the samples are those of torch 2.13"
)


def run(*names):
    """Torch's test modules forbid to set flags, so they are imported in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.virtual.small_inputs", *names],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    return int(done.stdout.split("\n")[-2].partition(" ")[0])


@of_torch_2_13
@pytest.mark.slow
def test_operators_that_failed_run_as_on_the_cpu():
    assert run(*NAMES) > 400


@of_torch_2_13
@pytest.mark.long
def test_all_operators_run_as_on_the_cpu():
    assert run() > 35_000


@pytest.mark.parametrize("dim", [0, -1, [0]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_tensor_without_dimensions_is_reduced_over_its_first(gpu, dim, dtype):
    number = torch.ones((), device="cuda").to(dtype)
    assert torch.sum(number, dim, keepdim=True).size() == ()
    assert torch.sum(torch.zeros((), dtype=dtype, device="cuda"), dim).item() == 0
    for reduce in (torch.amax, torch.amin):
        leaf = torch.randn((), device="cuda", requires_grad=True)
        reduce(leaf, dim, keepdim=True).backward()
        assert leaf.grad.size() == ()


def test_a_rule_that_divides_by_zero_is_not_asked(gpu):
    """As torch's rules in Python do for one element, or none, of each channel."""
    one, none = (torch.randn(1, 4, n, device="cuda", requires_grad=True) for n in (1, 0))
    weight = torch.ones(4, device="cuda", requires_grad=True)
    trained = {"training": True, "momentum": 0.5, "eps": 1e-5}
    means = torch.native_batch_norm(one, weight, weight, None, None, **trained)[1]
    assert means.size() == (4,)
    scores = torch.nn.functional.scaled_dot_product_attention(none, none, none, is_causal=True)
    assert scores.size() == none.size()
    torch.nn.functional.group_norm(none, 2, weight, weight).sum().backward()
    assert none.grad.size() == none.size()
    assert weight.grad.size() == (4,)
