"""A second model lies on the card and is not used.

What it sees
    - A module of the notebook, of the model's own class, that alone holds a set of weights like the
      model's and was not called while everything was recorded; or an optimizer of weights that no
      module has any more. It speaks where the model that was called has a name of its own.
    - A model that was called, but not since another one was used, and the variables that still hold
      it: a trainer, a learner, an optimizer. It speaks if that is 5% of the card, if memory is
      short, or if it is a fifth of the peak and the other one was trained.
    - A model that a function keeps behind its last call, while another one makes the peak. If
      memory is short: the models of a diffusers pipeline that wait for their turn on the card.
    - A second copy that an attribute has and nothing calls; a model that a training builds again
      beside the one that it trains; frozen weights that a reference has again, or a reference of
      a model with adapters (peft), which is that model with its adapters off; the data of a module
      that was copied with it. It speaks if that is a tenth of the peak and 1% of the card.
    - A model that no later line of a script reads, as kept_after_use tells of other tensors.
    - A model that is still held when memory runs out for the weights of one like it.
    - Models that are arguments of calls in a `functools.lru_cache`.
    - A variable that still held its model while the next one for it was built.

    Names that tell of a purpose (ema, teacher, target, best, ...) are left alone.
What it costs
    The weights twice; with an old optimizer its state twice as well.
Do instead
    `del` the one that is not needed, and the objects that hold it. A cell that builds the model
    anew should first delete the old one and its optimizer. Do not decorate methods with
    `lru_cache`: it keeps `self`.
When to ignore it
    It is an average, a teacher or a best model so far, or you call it again later. Such a copy can
    wait on the CPU.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HeldStorage, HolderKind
from nbmem.core.session.tensor_names import KEY_OF, LRU_CACHE_OF
from nbmem.report.analysis.growth_candidates import common_place
from nbmem.report.analysis.pipelines import offloaded_peak, pipelines_of
from nbmem.report.analysis.program_names import is_expression
from nbmem.report.model import Command
from nbmem.report.tips.detectors.copied_models import built_again, copies
from nbmem.report.tips.detectors.unread_variables import unread_variables
from nbmem.report.tips.detectors.unused_models import idle_at_peak, replaced_models, unused_models
from nbmem.report.tips.purpose_names import marks_intended_copy
from nbmem.report.tips.rule import Findings, Rule, exact, fmt, simulated

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

ALIKE = 0.9
LEAST_OF_PEAK = 0.1
"""Part of the peak from which a model that was held too long is told."""
LARGE = 0.2
"""Part of the peak from which an unused model is told on a card with room."""


def check(e: Evidence) -> Findings:
    """Find models that nothing uses any more."""
    found = list(_by_calls(e))
    yield from found or _unread(e)


def _reloaded(e: Evidence) -> Findings:
    """Find a model that was held when memory ran out for the next one like it.

    The traceback alone has the next one's weights: the function that loads it did not end.
    """
    if not e.ran_out:
        return
    weights = [h for h in e.held if _is_weight(e, h)]
    kinds = {h: {way.kind for way in h.holders} for h in weights}
    coming = Counter(h.form for h in weights if kinds[h] == {HolderKind.TRACEBACK})
    held = [h for h in weights if HolderKind.NAME in kinds[h]]
    names = {h: next(w.path for w in h.holders if w.kind is HolderKind.NAME) for h in held}
    size = e.freed_bytes(held)
    if coming and not coming - Counter(h.form for h in held) and e.dominates(size, LARGE):
        place = common_place(names.values())
        yield RULE.finding(
            title=f"`{place}` still holds a model while one like it is loaded: use it again, or "
            f"delete it before, {fmt(size)}",
            evidence=f"Memory ran out when {coming.total()} weights of the next one were on the "
            "card, all with the shapes of its own.",
            saves=exact(size),
        )


def _unread(e: Evidence) -> Findings:
    """Find models that no later line of the script reads."""
    for one in e.once(unread_variables):
        mine = np.isin(e.card_ledger.category[one.rows], (Category.WEIGHTS, Category.BUFFERS))
        gain = e.peak_saving(one.rows, one.since)
        intended = any(map(marks_intended_copy, one.names))
        if mine.any() and not intended and e.is_needless(gain):
            yield RULE.finding(
                title=f"`{one.code}` before {one.line}: {fmt(gain)} less at the peak",
                evidence=f"{one.evidence}, and the weights are still there at the peak.",
                saves=exact(gain),
                code=f"{one.code}   # behind the last use",
            )


def _by_calls(e: Evidence) -> Findings:
    yield from _reloaded(e)
    yield from _replaced(e)
    yield from _built_again(e)
    yield from _idle(e)
    yield from _offloadable(e)
    yield from _cached(e)
    yield from _second_copies(e)
    unused = list(_unused(e))
    yield from unused
    told = {finding.code for finding in unused}
    yield from (finding for finding in _copies(e) if finding.code not in told)


def _replaced(e: Evidence) -> Findings:
    """Find variables that held one model while the next was built."""
    for model in replaced_models(e):
        gain = e.peak_saving(model.rows, model.since)
        if e.dominates(gain, LEAST_OF_PEAK):
            roots = ", ".join(model.roots)
            yield RULE.finding(
                title=f"`del {roots}` before the next model is built: {fmt(gain)} less at the peak",
                evidence=f"{' and '.join(model.roots)} still held the former model while the next "
                "one came to the card. With the former one deleted before, the peak would be "
                f"{fmt(e.report.peak.allocated - gain)}.",
                saves=exact(gain),
                code=f"del {roots}   # before the next model is built",
            )


def _built_again(e: Evidence) -> Findings:
    """Find a model that a training built again beside the one that it trains."""
    place, model, rows = built_again(e)
    gain = e.peak_saving(rows)
    if e.is_needless(gain):
        yield RULE.finding(
            title=f"{place} has the weights of {model} again: {fmt(gain)} less at the peak if it "
            f"uses {model} itself",
            evidence=f"Weights with the names and shapes of {model}'s were made during the "
            "training, and freed again.",
            saves=exact(gain),
        )


def _idle(e: Evidence) -> Findings:
    """Find models that a function keeps while another one makes the peak."""
    pipelines = pipelines_of(e.card_ledger)
    for model in idle_at_peak(e):
        if any(one.model_of(model.name) for one in pipelines):
            continue  # its pipeline calls it again, and holds it
        gain = e.peak_saving(model.rows, model.since)
        if e.is_needless(gain):
            release = f"del {model.name}" if model.name.isidentifier() else f"Release {model.name}"
            yield RULE.finding(
                title=f"`{release}` behind its last call: {fmt(gain)} less at the peak",
                evidence=f"{model.name} was called for the last time before {model.later}, and "
                "its weights were still there at the peak.",
                saves=exact(gain),
            )


def _offloadable(e: Evidence) -> Findings:
    """Find pipelines whose idle models could wait on the host."""
    if e.short is None and not e.everything:
        return  # moving models takes time
    for pipeline in pipelines_of(e.card_ledger):
        then = None if pipeline.offloaded else offloaded_peak(e.card_ledger, pipeline)
        gain = 0 if then is None else e.report.peak.allocated - then
        if e.is_large_part(gain):
            call = f"{pipeline.name}.enable_model_cpu_offload()"
            yield RULE.finding(
                title=f"`{call}` in place of `.to(...)`: {fmt(gain)} less at the peak",
                evidence=f"The models run one after the other: {pipeline.listed()}. With only the "
                f"running one on the card the peak is {fmt(e.report.peak.allocated - gain)}. Each "
                "is moved when it is called, which takes some seconds for each image.",
                saves=simulated(gain),
                code=f"{call}   # in place of {pipeline.name}.to(...)",
            )


def _second_copies(e: Evidence) -> Findings:
    for copy in copies(e):
        freed = e.freed_bytes(copy.storages)
        if e.is_needless(freed):
            yield RULE.finding(
                title=f"{copy.title}: {fmt(freed)}; {copy.cure}",
                evidence=copy.evidence,
                saves=exact(freed),
                code=copy.code,
            )


def _cached(e: Evidence) -> Findings:
    """Find models that only the arguments of cached calls keep."""
    found: dict[str, list[HeldStorage]] = {}
    for h in e.held:
        place = h.name.removeprefix(KEY_OF).removeprefix(LRU_CACHE_OF)
        if len(h.holders) == 1 and h.name.endswith(f"{LRU_CACHE_OF}{place}"):
            found.setdefault(place, []).append(h)
    for place, mine in found.items():
        freed = e.freed_bytes(mine)
        as_arguments = any(h.name.startswith(KEY_OF) and _is_weight(e, h) for h in mine)
        if e.worth(freed) and as_arguments and is_expression(place):
            yield RULE.finding(
                title=f"`{place}.cache_clear()` gives back {fmt(freed)}: its lru_cache keeps "
                "models",
                evidence=f"Calls of {place} that functools.lru_cache remembers have models as "
                f"their arguments (a method's `self`). Nothing else keeps these {len(mine)} "
                "tensors.",
                saves=exact(freed),
                code=f"{place}.cache_clear()",
            )


def _is_weight(e: Evidence, held: HeldStorage) -> bool:
    row = e.row_of(held)
    return row is not None and e.card_ledger.category[row] == Category.WEIGHTS


def _unused(e: Evidence) -> Findings:
    """Find models that were not called since another one was trained."""
    for model in unused_models(e):
        freed, names = e.freed_bytes(model.storages), model.roots or (model.name,)
        large = model.trained and e.dominates(freed, LARGE)
        large |= not model.roots and e.is_large_part(freed)
        if not (e.matters(freed) or large):
            continue
        code = f"del {', '.join(names)}" if model.roots else f'{model.name}.to("cpu")'
        yield RULE.finding(
            title=f"`{code}` gives back {fmt(freed)}: a model that is no longer used",
            evidence=f"{' and '.join(names)} alone keep{'s' * (len(names) == 1)} "
            f"{len(model.storages)} tensors of a model that was not called since {model.later} "
            f"{'began to train' if model.trained else 'was first called'}.",
            saves=exact(freed),
            code=code,
            command=Command(name="free", arguments=names) if model.roots else None,
        )


def _copies(e: Evidence) -> Findings:
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
    forms = Counter(f for n, f in e.weight_forms.items() if n.startswith(f"{model}."))
    for root, kind in others.items():
        mine = e.held_only_by(HolderKind.NAME, root=root)
        freed = e.freed_bytes(mine)
        if kind == "optimizer":  # compare only its parameters: its state is always its own
            mine = [s for s in mine if _is_parameter(s.name_in(root))]
        alike = Counter(s.form for s in mine) & forms
        if not forms or alike.total() < ALIKE * forms.total() or not e.worth(freed):
            continue
        yield RULE.finding(
            title=f"`del {root}` gives back {fmt(freed)}: a second copy of {model}",
            evidence=f"The {kind} {root} alone holds {alike.total()} tensors with the shapes of "
            f"{model}'s weights, and no module that holds them was called.",
            saves=exact(freed),
            code=f"del {root}",
            command=Command(name="free", arguments=(root,)),
        )


def _is_parameter(path: str) -> bool:
    """Return whether an optimizer's path leads to a parameter.

    Parameters are also the keys of its state.
    """
    return ".param_groups" in path or (path.startswith(KEY_OF) and not path.endswith(".grad"))


RULE = Rule(name="two_models", text=__doc__, check=check, anywhere=True)
