"""State of torch and the interpreter that a trace must restore."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from typing import Any

import torch

import nbmem.capture.record.recording


def state() -> dict[str, Any]:
    """Return everything in which something of nbmem could remain."""
    hooks = torch.nn.modules.module
    classes = (torch.nn.Module, torch.optim.Optimizer)
    return {
        "a class of torch's": [
            (owner.__name__, name, id(value))
            for owner in classes
            for name, value in sorted(vars(owner).items())
            if name != "__abstractmethods__"
        ],
        "a name in torch": [
            (name, id(getattr(module, name, None)))
            for module, names in (
                (torch.autograd.graph, ("Variable", "log", "_engine_run_backward")),
                (torch._C, ("_cuda_record_memory_history",)),
            )
            for name in names
        ],
        "a hook on modules": [
            len(getattr(hooks, name) or ())
            for name in sorted(vars(hooks))
            if name.startswith("_global_") and name.endswith("hooks")
        ],
        "a recording": len(nbmem.capture.record.recording._running),
        "a thread": sorted(t.name for t in threading.enumerate() if "nbmem" in t.name),
        "the handler of Ctrl-C": signal.getsignal(signal.SIGINT),
        "the garbage collector": gc.isenabled(),
        "what finds modules": list(map(id, sys.meta_path)),
        "who is told of compilations": [
            len(getattr(handler, name))
            for handler in [getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)]
            if handler is not None
            for name in ("start_callbacks", "end_callbacks", "__dict__")
        ],
        "the level of torch's logger": logging.getLogger("torch.autograd.graph").level,
        "torch functions": torch._C._is_torch_function_all_disabled(),
        "gradients": torch.is_grad_enabled(),
    }


def state_differences(before: dict[str, Any], after: dict[str, Any] | None = None) -> list[str]:
    """Describe the differences from an earlier `state()`."""
    after = state() if after is None else after
    if not before["who is told of compilations"]:  # Dynamo was imported meanwhile
        before = before | {"who is told of compilations": after["who is told of compilations"]}
    return [
        f"{what}: {before[what]} -> {after[what]}" for what in before if before[what] != after[what]
    ]
