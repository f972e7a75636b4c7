"""Run a program traced, mend it, and compare the bytes."""

import gc
from contextlib import contextmanager


@contextmanager
def program_runner():
    """Provide run(code, ...), which returns (trace, namespace)."""
    import torch

    import nbmem.api.tracing as nbmem
    from nbmem import virtual

    spaces = []

    def run(code, *, before="", card="H100 80GB", stacks=False, **options):
        leave()
        virtual.activate(card, **{"defer": True, **options})
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


def measure_freed(run, program):
    """Return all findings and the bytes that the remedy frees."""
    import torch

    trace, names = run(program.code, before=program.before)
    findings = trace.report().findings
    before = torch.cuda.memory_allocated()
    exec(program.action, names)
    return findings, before - torch.cuda.memory_allocated()


def measure_saved(run, program):
    """Return all findings and the fall of the mended program's peak."""
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


def tip_and_saving(run, rule, codes, **options):
    """Return the one tip for a program, and how far its peak falls with the cure.

    The cured program has no such tip.
    """
    peaks, found = [], []
    for code in codes:
        trace, _ = run(code, **options)
        peaks.append(trace.report().peak.allocated)
        found.append([tip for tip in trace.report().findings if tip.rule == rule])
    (tip,), none = found
    assert none == []
    return tip, peaks[0] - peaks[1]
