"""A second copy of the model lies on the card and is not used.

What it sees
    A module of the notebook, of the model's own class, that alone holds a set of weights like the
    model's and was not called while everything was recorded; or an optimizer of weights that no
    module has any more. It speaks where the model that was called has a name of its own. Names that
    tell of a purpose (ema, teacher, target, best, ...) are left alone.
What it costs
    The weights twice; with an old optimizer its state twice as well.
Do instead
    `del` the one that is not needed. A cell that builds the model anew should first delete the old
    one and its optimizer.
When to ignore it
    It is an average, a teacher or a best model so far. Such a copy can wait on the CPU.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nbmem.core.session.holders import HolderKind
from nbmem.core.session.tensor_names import KEY_OF
from nbmem.report.model import Command, Finding
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Rule, fmt
from nbmem.report.tips.weight_names import weight_forms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.report.tips.evidence import Evidence

ALIKE = 0.9


def check(e: Evidence) -> Iterator[Finding]:
    """Find names that alone keep a copy of a called model's weights."""
    chief, model = e.model(), e.model_code()
    if chief is None or model is None:
        return  # the training runs inside an object of the user's
    used = {m["name"] for m in e.modules if m.get("called")}
    holders = {m["name"]: "module" for m in e.modules if m["class"] == chief["class"]}
    holders |= {o["name"]: "optimizer" for o in e.optimizers}
    others = {
        root: kind
        for root, kind in holders.items()
        if root not in used and not marks_intended_copy(root) and root.isidentifier()
    }
    if not others:
        return
    forms = Counter(f for n, f in weight_forms(e).items() if n.startswith(f"{model}."))
    for root, kind in others.items():
        mine = e.held_only_by(HolderKind.NAME, root=root)
        freed = e.freed_bytes(mine)
        if kind == "optimizer":  # compare only its parameters: its state is always its own
            mine = [s for s in mine if _is_parameter(s.name_in(root))]
        alike = Counter(s.form for s in mine) & forms
        if not forms or alike.total() < ALIKE * forms.total() or not e.worth(freed):
            continue
        yield Finding(
            rule=RULE.name,
            title=f"`del {root}` gives back {fmt(freed)}: a second copy of {model}",
            evidence=f"The {kind} {root} alone holds {alike.total()} tensors with the shapes of "
            f"{model}'s weights, and no module that holds them was called.",
            low=freed,
            high=freed,
            ground="exact",
            code=f"del {root}",
            command=Command(name="free", arguments=(root,)),
        )


def _is_parameter(path: str) -> bool:
    """Return whether an optimizer's path leads to a parameter.

    Parameters are also the keys of its state.
    """
    return ".param_groups" in path or (path.startswith(KEY_OF) and not path.endswith(".grad"))


RULE = Rule(name="two_models", text=__doc__, check=check, anywhere=True)
