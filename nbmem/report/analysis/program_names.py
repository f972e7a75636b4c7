"""Find a program's models and optimizers, and write code for them.

The names in that code are the user's, never those of this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmem.core.session.session import Session

    Thing = Mapping[str, Any]

_EXPRESSION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[\d+\]|\['[\w. -]*'\])*")

BODY = "...   # the lines of the evaluation"
"""Stands in code for lines of the user's."""
_OF_ANOTHER = re.compile("test|eval|val", re.IGNORECASE)
"""Parts of a batch's name that show that it is not for training."""


def largest_model(session: Session) -> dict[str, Any] | None:
    """Return the largest module that was called, or None.

    None if modules were not recorded, or none is live.
    """
    called = [m for m in session.facts.get("modules") or [] if m.get("called")]
    return max(called, key=lambda m: int(m["bytes"]), default=None)


def trained_model(session: Session) -> dict[str, Any] | None:
    """Return the largest called module in training mode, or None.

    Where none is in training mode, it is the largest called one.
    """
    modules = session.facts.get("modules") or []
    found = [m for m in modules if m.get("called") and m.get("training")]
    return max(found, key=lambda m: int(m["bytes"]), default=None) or largest_model(session)


def evaluated_model(session: Session) -> dict[str, Any] | None:
    """Return the largest module that was called in eval mode with gradients.

    Where no call was seen so, it is the largest module that was called.
    """
    names = {
        call["module"]
        for call in session.facts.get("calls") or []
        if call["grad"] and not call["training"]
    }
    modules = [m for m in session.facts.get("modules") or [] if m["name"] in names]
    found = [m for m in modules if m.get("called")]
    return max(found, key=lambda m: int(m["bytes"]), default=None) or largest_model(session)


def is_beside_training(session: Session, model: Thing) -> bool:
    """Return whether only other modules than this one are trained.

    They are called in training mode, and this one never: a teacher.
    """
    calls = [call for call in session.facts.get("calls") or [] if call["grad"]]
    trained = {call["module"] for call in calls if call["training"]}
    return bool(trained) and model["name"] not in trained


def largest_fsdp_module(session: Session) -> dict[str, Any] | None:
    """Return the module with the most bytes in FSDP units, or None.

    The bytes are those of all ranks together.
    """
    sharded = [m for m in session.facts.get("modules") or [] if m.get("fsdp_units")]
    return max(sharded, key=lambda m: sum(m["fsdp_units"]), default=None)


def largest_optimizer(session: Session) -> dict[str, Any] | None:
    """Return the optimizer with the most parameters, or None.

    None if optimizers were not recorded, or none is live.
    """
    optimizers = session.facts.get("optimizers") or []
    return max(optimizers, key=lambda o: sum(o["parameters"]), default=None)


def batch_size_code(session: Session, rows: int, wanted: int) -> str:
    """Return the line of code that sets the batch size.

    The program's own name for the batch size is used if it is known.

    Args:
        session: What was recorded.
        rows: Number of rows of a batch in the recording.
        wanted: Number of rows that it shall have.
    """
    found = session.facts.get("batches") or []
    names = [b["name"] for b in found if b["value"] == rows and is_expression(b["name"])]
    trained = [name for name in names if not _OF_ANOTHER.search(name)] or names
    if len(trained) == 1:
        return f"{trained[0]} = {wanted}"
    return f"batch_size = {wanted}   # by whatever name your program has for it"


def code_name(obj: Thing | None) -> str | None:
    """Return the code that names a module or an optimizer, or None.

    None if only its class is known, or if its name is not valid in code.

    Names are the user's, and may contain anything.
    """
    if obj is None or obj["name"] == obj["class"] or not obj.get("typed", True):
        return None
    name = str(obj["name"])
    return name if is_expression(name) else None


def input_wants_gradient(session: Session) -> bool:
    """Return whether a gradient of a model's input is computed.

    As for a saliency map or an adversarial example: a graph is needed without a training.
    """
    calls = session.facts.get("calls") or ()
    return any(call["grad"] and call.get("of_inputs") for call in calls)


def is_expression(text: str) -> bool:
    """Return whether a text is a plain expression that can stand in code.

    That is a name with attributes, numbers and plain keys.
    """
    return _EXPRESSION.fullmatch(text) is not None


def items_of(place: str, paths: Iterable[str]) -> int | None:
    """Count the paths `place[0]`, `place[1]` and so on, or return None.

    None if a path has any other form, or if a number is missing.

    Lists, deques and dictionaries with numeric keys get one form: each item is assigned separately.
    """
    item = re.compile(re.escape(place) + r"\[(\d+)\]")
    found = [item.fullmatch(path) for path in paths]
    numbers = sorted(int(match[1]) for match in found if match is not None)
    whole = len(numbers) == len(found) and numbers == list(range(len(numbers)))
    return len(numbers) if whole else None


def blocks_of(model: Thing | None, path: str) -> str | None:
    """Return the code for the list of blocks at a path in a model, or None.

    None if the model has no name.
    """
    name = code_name(model)
    if name is None or not path:
        return name
    if all(part.isidentifier() for part in path.split(".")):
        return f"{name}.{path}"
    return f'{name}.get_submodule("{path}")'  # in a Sequential, `model.0` is not valid code


# --- lines that both advice and remedies give


def no_grad_code(model: Thing | None, *, trains: bool) -> str:
    """Return code that evaluates a model without gradients.

    The user's own evaluation is the body of its `with` statement.

    Args:
        model: The facts of the evaluated model, if it is known.
        trains: Whether the program has an optimizer.
    """
    name = code_name(model)
    lines = ["with torch.no_grad():", f"    {BODY}"]
    if model is not None and name is not None:
        lines.insert(0, f"{name}.eval()")
        if trains or model["training"]:
            lines.append(f"{name}.train()   # before the training goes on")
    return "\n".join(["import torch", "", *lines])


def zero_grad_code(optimizer: str | None) -> str | None:
    """Return code that frees the gradients, or None.

    None if the notebook has no name for the optimizer.
    """
    if optimizer is None:
        return None
    return f"{optimizer}.zero_grad(set_to_none=True)   # behind {optimizer}.step()"


def checkpoint_code(blocks: str | None) -> str | None:
    """Return code that checkpoints each block of a list, or None.

    Each block is computed again in backward. None if the notebook has no name for the list.
    """
    if blocks is None:
        return None
    return (
        "import functools\n\nfrom torch.utils.checkpoint import checkpoint\n\n"
        f"for block in {blocks}:\n"
        "    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)"
    )
