"""Write a library's own calls for a model of transformers or diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nbmem.report.analysis.program_names import code_name, is_expression

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest

    Thing = Mapping[str, Any]

_TRAINER = ("transformers", "trainer.py")
PART = 1024
"""Positions of one part of a loss that is computed in parts."""
_CALLS = {
    "transformers": "gradient_checkpointing_enable(\n    gradient_checkpointing_kwargs="
    '{"use_reentrant": False})',
    "diffusers": "enable_gradient_checkpointing()",
}
"""Each library's call that checkpoints a model's blocks."""


def library_model(model: Thing | None, path: str = "") -> Thing | None:
    """Return a library's model around a path in a module, or None."""
    found = (model or {}).get("libraries") or []
    inside = (one for one in found if _is_inside(path, str(one["path"])))
    return next(inside, None)


def name_of_library_model(model: Thing, inner: Thing) -> str | None:
    """Return the code that names a library's model, or None.

    peft's wrapper passes calls on, so it stands for the model inside it.
    """
    name = code_name(model)
    if name is None or model.get("peft") or not inner["path"]:
        return name
    return f"{name}.{inner['path']}"


def checkpointing_call(model: Thing | None, path: str) -> str | None:
    """Return a library's own call that checkpoints the blocks at a path.

    None if no library has one for this model, or if the program has no name for it.

    Args:
        model: The facts of the program's module.
        path: The path of the blocks in it.
    """
    inner = library_model(model, path)
    if model is None or inner is None or not inner["checkpoints"]:
        return None
    name = name_of_library_model(model, inner) or _name_in_class(model, inner)
    return None if name is None else f"{name}.{_CALLS[inner['library']]}"


def loss_in_parts(model: Thing | None) -> str | None:
    """Return code that computes a causal language model's loss in parts.

    None if the model is no such model of transformers whose scores are those of its last layer, or
    if the program has no name for it.
    """
    inner = library_model(model)
    if model is None or inner is None or not (inner["keeps"] and inner["plain"]):
        return None
    name = name_of_library_model(model, inner)
    return None if name is None else loss_in_parts_of(name, peft=bool(model.get("peft")))


def loss_in_parts_of(name: str, *, peft: bool = False) -> str:
    """Return the code for a causal language model of transformers.

    Args:
        name: The program's name for the model.
        peft: Whether it is peft's wrapper of the model.
    """
    whole = f"{name}.get_base_model()" if peft else name
    return _IN_PARTS.format(model=whole, part=PART)


_IN_PARTS = """import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

def compute_loss_in_parts(model, size={part}):
    body, head, whole = model.base_model, model.get_output_embeddings(), model.forward

    def part(hidden, target):
        return torch.nn.functional.cross_entropy(head(hidden).float(), target, reduction="sum")

    def forward(input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **more):
        if labels is None or not model.training:
            return whole(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)
        hidden = body(input_ids=input_ids, attention_mask=attention_mask, **more)[0]
        hidden, target = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        parts = zip(hidden.split(size), target.split(size))
        total = sum(checkpoint(part, h, t, use_reentrant=False) for h, t in parts)
        count = (target != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=total / count)

    model.forward = forward

compute_loss_in_parts({model})   # before its Trainer is made"""


def is_in_trainer(case: FailedRequest) -> bool:
    """Return whether a request failed in transformers' Trainer."""
    return case.refusal is not None and any(
        PurePath(frame.file).parts[-2:] == _TRAINER for frame in case.refusal.stack
    )


def _name_in_class(model: Thing, inner: Thing) -> str | None:
    """Return the code for a model that only an object of a class has, or None.

    Lightning makes such objects' models: `self.net`, to be written in the class.
    """
    if model.get("typed", True):
        return None
    owner, _, rest = str(model["name"]).partition(".")
    path = ".".join(part for part in (rest, str(inner["path"])) if part)
    return f"# in the class {owner}:\nself.{path}" if path and is_expression(path) else None


def _is_inside(path: str, outer: str) -> bool:
    return not path or not outer or path == outer or path.startswith(f"{outer}.")
