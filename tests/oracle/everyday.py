"""Compare results and errors of common calls.

`python -m tests.oracle --everyday` asks each line of everyday.txt on the oracle and on the virtual
card. Statements are parted by ` ;; `; of the last one, an expression, the form is told: shapes,
types, devices and layouts of tensors, and what an error says first. Where the two differ in values
alone (the oracle computes none), nothing is wrong.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

LINES = Path(__file__).with_name("everyday.txt")
_LONGEST = 150


def names() -> dict[str, Any]:
    """Return the names that lines may use; `c` is on the CPU."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional

    torch.manual_seed(0)
    card: dict[str, Any] = {"device": "cuda"}
    x = torch.randn(4, 6, **card)
    return {
        "torch": torch, "nn": nn, "F": functional, "np": np, "copy": copy, "io": io,
        "pickle": pickle, "tempfile": tempfile, "os": os,
        "x": x, "y": torch.randn(4, 6, **card), "i": torch.tensor([0, 2, 1], **card),
        "h": torch.randn(4, 6, dtype=torch.float16, **card), "b": torch.randn(4, 6, **card) > 0,
        "sq": torch.randn(5, 5, **card), "v": torch.randn(6, **card),
        "g": torch.randn(4, 6, requires_grad=True, **card),
        "n": torch.arange(24, **card).view(4, 6), "c": torch.randn(4, 6),
        "img": torch.randn(2, 3, 8, 8, **card),
        "z": torch.randn(4, 6, dtype=torch.complex64, **card), "lin": nn.Linear(6, 3).to("cuda"),
    }  # fmt: skip


def form(value: Any) -> str:
    """Describe a result without its values."""
    import torch

    if isinstance(value, torch.Tensor):
        told = f"{tuple(value.shape)} {value.dtype} {value.device} {value.layout}"
        if value.layout is torch.strided:
            marks = (value.is_contiguous(), value.requires_grad, value.is_leaf)
            told += " contiguous" * marks[0] + " learns" * marks[1] + " leaf" * marks[2]
        return told
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(form, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {form(item)}" for key, item in value.items()) + "}"
    plain = (bool, int, float, str, type(None), torch.dtype, torch.device)
    return repr(value)[:_LONGEST] if isinstance(value, plain) else type(value).__name__


def answer(line: str) -> str:
    """Return what a line returns or raises."""
    import torch

    given = names()
    *before, last = line.split(" ;; ")
    try:
        for statement in before:
            exec(statement, given)
        told = form(eval(last, given))
    except Exception as err:  # noqa: BLE001 - that is the answer
        first = (str(err).splitlines() or [""])[0]
        told = f"{type(err).__name__}: {first[:_LONGEST]}"
    for kind in ("cuda", "cpu"):  # what a line has turned does not turn the next
        torch.set_autocast_enabled(kind, False)  # noqa: FBT003 - torch takes it so
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_grad_enabled(True)
    torch.clear_autocast_cache()
    return told


def answers(python: str, env: dict[str, str], *, virtual: str | None) -> dict[str, str]:
    """Each line's answer, in a process of its own."""
    command = [python, "-m", "tests.oracle.everyday", *([virtual] if virtual else [])]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    found = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return dict(found)


def differences(real: dict[str, str], card: dict[str, str]) -> list[str]:
    """Yield each line whose answers differ, with both."""
    return [
        f"{line}\n    oracle: {told}\n    card:   {card.get(line, 'nothing: it ended there')}"
        for line, told in real.items()
        if card.get(line) != told
    ]


def main() -> None:
    warnings.simplefilter("ignore")
    if len(sys.argv) > 1:
        from nbmem import virtual

        virtual.activate(sys.argv[1])
    for line in LINES.read_text(encoding="utf-8").splitlines():
        print(json.dumps([line, answer(line)]), flush=True)


if __name__ == "__main__":
    main()
