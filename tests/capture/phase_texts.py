"""Phases of a recording as text: `input0 forward0 backward0`."""


def phase_text(phases):
    return " ".join(f"{p.name}{'' if p.step is None else p.step}" for p in phases)


def phases_of(trace):
    return [span for span in trace.session.spans if span.kind == "phase"]


def steps(names, before="", count=2):
    """Return the text of steps that have these phases each."""
    each = (f"{name}{n}" for n in range(count) for name in names.split())
    return " ".join([*before.split(), *each])
