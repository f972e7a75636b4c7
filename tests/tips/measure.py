"""Runs a program on the virtual card under a trace, mends it, and compares the bytes."""

from __future__ import annotations

import gc
from contextlib import contextmanager


@contextmanager
def running():
    """`run(code, before=..., card=..., conf=..., stacks=...)` gives (trace, namespace)."""
    import torch

    import nbmem.api.tracing as nbmem
    from nbmem import virtual

    spaces = []

    def run(code, *, before="", card="H100 80GB", stacks=False, **options):
        leave()
        virtual.activate(card, **options)
        names = {"__name__": "__main__"}
        spaces.append(names)
        exec(compile(before, "before.py", "exec"), names)
        with nbmem.trace("cell", namespace=names, stacks=stacks) as trace:
            exec(compile(code, "train.py", "exec"), names)
        return trace, names

    def leave():
        for names in spaces:
            names.clear()
        spaces.clear()
        torch.set_grad_enabled(True)
        torch.backends.cudnn.benchmark = False
        gc.enable()  # a program with a cycle in it switches the collector off
        gc.collect()
        virtual.deactivate()

    try:
        yield run
    finally:
        leave()


def freed(run, program):
    """(all findings, bytes by which allocated falls when the remedy is applied)."""
    import torch

    trace, names = run(program.code, before=program.before)
    findings = trace.report().findings
    before = torch.cuda.memory_allocated()
    exec(program.action, names)
    return findings, before - torch.cuda.memory_allocated()


def saved(run, program):
    """(all findings, bytes by which the peak of the mended program is lower)."""
    peaks, findings = [], ()
    for what in (program.old, program.new):
        trace, _ = run(
            program.code.replace("{old}", what),
            before=program.before,
            card=program.card,
            conf=program.conf if peaks else None,
            stacks=program.stacks,
        )
        if not peaks:
            findings = trace.all_tips() if program.everything else trace.report().findings
        peaks.append(getattr(trace.report().peak, program.measure))
    return findings, peaks[0] - peaks[1]
