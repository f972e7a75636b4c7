"""Composite operators under inference_mode.

The sizes are those of torch's own CUDA code (the oracle, torch 2.13, H100).
"""

import pytest
import torch
from torch.nn import functional

from tests.oracle.record import AllocatorEvents

LINES = {
    "torch.where(v > 0, v, 0)": [5, 4, 20, -4, -5],
    "F.interpolate(line, scale_factor=2, mode='nearest')": [144],
    "F.interpolate(line, scale_factor=2, mode='linear')": [144],
    "F.interpolate(image, size=(4, 4), mode='bilinear')": [384],
    "F.interpolate(image, size=(4, 4), mode='bicubic')": [384],
    "F.nll_loss(image.flatten(1), labels)": [4, 4, -4],
    "v.std()": [4],
}


@pytest.mark.parametrize("line", LINES)
def test_a_composite_asks_for_what_its_parts_ask_for(gpu, line):
    with torch.inference_mode():
        names = {
            "torch": torch, "F": functional, "v": torch.zeros(5, device="cuda"),
            "line": torch.zeros(2, 3, 3, device="cuda"),
            "image": torch.zeros(2, 3, 3, 3, device="cuda"),
            "labels": torch.zeros(2, dtype=torch.long, device="cuda"),
        }  # fmt: skip
        heard = AllocatorEvents(torch)
        made = eval(line, names)
        found = heard.sizes()
        del made
    assert found == LINES[line]
