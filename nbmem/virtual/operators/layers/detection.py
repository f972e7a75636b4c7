"""Operators of torchvision, which may be imported later or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.tensors.shapes import one
from nbmem.virtual.warnings import NMS

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


def nms(executor: Executor, call: OperatorCall) -> Any:
    """Run `nms`, with a note: every box is taken to be kept."""
    boxes = call.args[0]
    if boxes.size(0):
        call.gpu.note(NMS)
    return executor.deliver(call, one((boxes.size(0),), torch.int64))


OPERATORS = (Operator(("torchvision::nms",), run=nms),)
