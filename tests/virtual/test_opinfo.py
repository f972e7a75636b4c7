"""Common operators on torch's samples have the CPU's geometry."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NAMES = {
    "add", "addmm", "argmax", "as_strided", "bmm", "broadcast_to", "cat", "chunk", "clamp",
    "clone", "contiguous", "cumsum", "diagonal", "einsum", "expand", "flatten", "flip", "gather",
    "index_add", "index_put", "index_select", "masked_fill", "matmul", "max", "mean", "mul",
    "nn.functional.avg_pool2d", "nn.functional.cross_entropy", "nn.functional.embedding",
    "nn.functional.gelu", "nn.functional.interpolate", "nn.functional.layer_norm",
    "nn.functional.pad", "permute", "pow", "repeat", "reshape", "roll", "scatter", "scatter_add",
    "select", "slice", "softmax", "sort", "split", "squeeze", "stack", "std", "sum", "t",
    "take_along_dim", "topk", "transpose", "tril", "unbind", "unfold", "unsqueeze", "var", "view",
    "where",
}  # fmt: skip


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the samples are those of torch 2.13"
)
def test_operators_return_what_they_return_on_the_cpu():
    """In a process of its own: torch's test modules forbid to set flags like cudnn.benchmark."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.virtual.opinfo", *sorted(NAMES)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(NAMES)} of" in done.stdout
