"""A program of the sweep, and the marks for a fault.

A program is the text of a script. A comment that begins with `#:` marks a place:

    #: built     behind the model and its optimizer
    #: weights   the same, where the weights are a good part of the memory
    #: loss      behind the loss of a training step
    #: zero      on the line that sets the gradients to None
    #: eval      on the line that turns gradients off around the evaluation
    #: out       behind the output of an evaluation's forward
    #: step      at the end of a training step
    #: end       behind everything
"""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD = """
import copy, math, gc
import torch
from torch import nn
from torch.nn import functional as F

"""
PARTS = ("model", "optimizer", "loss", "out", "batch")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A healthy program.

    Attributes:
        name: What it is like.
        code: Its text.
        names: What the program calls its model, optimizer, loss, output and batch; a part that it
            does not have, or has inside a function only, is missing.
        needs: Packages without which it is left out.
    """

    name: str
    code: str
    names: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def marks(self) -> set[str]:
        """Return the marks of the program."""
        return {line.partition("#: ")[2].strip() for line in self.code.splitlines()} - {""}


def program(name: str, code: str, *, needs: tuple[str, ...] = (), **names: str) -> Program:
    """A program under the imports that all have."""
    assert set(names) <= set(PARTS), names
    return Program(name=name, code=HEAD + code.strip("\n") + "\n", names=names, needs=needs)
