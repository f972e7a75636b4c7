"""Read a program's names for its model, optimizer and loss."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TypeAlias

Statement: TypeAlias = ast.stmt


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """A program's names for its parts, with defaults for the unknown.

    Attributes:
        model: The model, whose parameters are trained.
        optimizer: The optimizer that steps.
        loss: The tensor whose backward is called; `loss` if that is an expression without a name.
        forward: The lines that compute the loss; a placeholder if they are unknown.
    """

    model: str = "model"
    optimizer: str = "optimizer"
    loss: str = "loss"
    forward: tuple[str, ...] = ("loss = ...  # forward and loss",)


@dataclass(slots=True)
class TrainingStep:
    """Statements of a training step; None where there is none or several.

    Attributes:
        model: The statement that makes the model.
        moved: The statement that only moves the model to a card.
        optimizer: The statement that makes the optimizer.
        forward: The statements from the model's call to the loss, in one block.
        backward: The statement that is `loss.backward()`.
        step: The statement that is `optimizer.step()`.
        zero_grad: The statement that clears the gradients.
        unnamed: Whether backward is called on an expression, which `forward` gives a name.
        loop: The variable of the loop around them that counts, if one does.
    """

    model: ast.Assign | None = None
    moved: Statement | None = None
    optimizer: ast.Assign | None = None
    forward: list[Statement] = field(default_factory=list)
    backward: ast.Expr | None = None
    step: ast.Expr | None = None
    zero_grad: ast.Expr | None = None
    unnamed: bool = False
    loop: str | None = None


def read(source: str) -> tuple[ProgramNames, TrainingStep]:
    """Find a program's names for its parts, and their statements."""
    usual = ProgramNames()
    tree = ast.parse(source)
    steppers = [name for name in _receivers(tree, "step") if name in _receivers(tree, "zero_grad")]
    optimizer = _only(steppers) or _only(_receivers(tree, "step")) or usual.optimizer
    model = _only(_receivers(tree, "parameters")) or usual.model
    moved = _moved(tree, model)
    sites = TrainingStep(
        model=_assigned(tree, model, but=moved),
        moved=moved,
        optimizer=_assigned(tree, optimizer),
        step=_called(tree, "step", optimizer),
        zero_grad=_called(tree, "zero_grad", optimizer) or _called(tree, "zero_grad", model),
        backward=_called(tree, "backward"),
    )
    if sites.backward is None:
        return ProgramNames(model, optimizer), sites
    value = sites.backward.value.func.value  # type: ignore[attr-defined] # `_called` checked
    if isinstance(value, ast.Call):  # criterion(net(x), y).backward()
        sites.unnamed = True
        forward = (f"{usual.loss} = {ast.unparse(value)}",)
        return ProgramNames(model, optimizer, usual.loss, forward), _looped(tree, sites)
    loss = ast.unparse(value)
    made = loss.partition(".")[0]  # output.loss: the output is what is made
    sites.forward = _forward_statements(tree, sites.backward, model, made)
    lines = tuple(
        line
        for statement in sites.forward
        for line in (ast.get_source_segment(source, statement) or "").splitlines()
    )
    return ProgramNames(model, optimizer, loss, lines or usual.forward), _looped(tree, sites)


def _receivers(tree: ast.Module, method: str) -> list[str]:
    """List the expressions on which a method is called, each once."""
    found = [
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and isinstance(node.func.value, (ast.Name, ast.Attribute))
    ]
    return list(dict.fromkeys(found))


def _only(found: list[str]) -> str | None:
    return found[0] if len(found) == 1 else None


def moved_operand(value: ast.expr) -> ast.expr | None:
    """Return the operand of `.cuda()` or `.to(device)`; None without one.

    Return the value itself where a move is not the last call in it.
    """
    text = ast.unparse(value)
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return None
    if value.func.attr == "cuda" or (value.func.attr == "to" and _of_a_device(value)):
        return value.func.value
    return value if ".cuda(" in text or ".to(" in text else None


def _of_a_device(call: ast.Call) -> bool:
    """Return whether the only argument of `to` is a device."""
    named = [k.value for k in call.keywords if k.arg == "device"]
    text = " ".join(map(ast.unparse, [*call.args, *named]))
    one = len(call.args) + len(call.keywords) == 1
    return one and not any(kind in text for kind in ("float", "half", "type", "double"))


def _moved(tree: ast.Module, name: str) -> Statement | None:
    """Find the one statement `model.cuda()` or `model = model.to(device)`."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.Expr, ast.Assign))
        and (inside := moved_operand(node.value)) is not None
        and ast.unparse(inside) == name
    ]
    return found[0] if len(found) == 1 else None


def _assigned(tree: ast.Module, name: str, but: Statement | None = None) -> ast.Assign | None:
    """Find the one statement, except `but`, that assigns a name."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and node is not but
        and len(node.targets) == 1
        and ast.unparse(node.targets[0]) == name
    ]
    return found[0] if len(found) == 1 else None


def _called(tree: ast.Module, method: str, on: str | None = None) -> ast.Expr | None:
    """Find the one statement that only calls a method."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == method
        and (on is None or ast.unparse(node.value.func.value) == on)
    ]
    return found[0] if len(found) == 1 else None


def _blocks(tree: ast.Module) -> list[list[Statement]]:
    return [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list)
    ]


def _forward_statements(
    tree: ast.Module, backward: ast.Expr, model: str, loss: str
) -> list[Statement]:
    """List the statements from the model's call to the loss.

    They are of the block that contains the backward.
    """
    block = next(block for block in _blocks(tree) if backward in block)
    before = block[: block.index(backward)]
    ends = [i for i, s in enumerate(before) if isinstance(s, ast.Assign) and _makes(s, loss)]
    if not ends:
        return []
    calls = [i for i, s in enumerate(before) if _calls(s, model)]
    if not calls or calls[0] > ends[-1]:
        return [before[ends[-1]]] if not calls else []
    return before[calls[0] : ends[-1] + 1]


def _makes(statement: ast.Assign, name: str) -> bool:
    """Return whether a statement assigns a name, alone or in a tuple."""
    return any(
        ast.unparse(part) == name
        for target in statement.targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    )


def _calls(statement: Statement, model: str) -> bool:
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == model
        for node in ast.walk(statement)
    )


def _looped(tree: ast.Module, sites: TrainingStep) -> TrainingStep:
    """Set the counter of the innermost loop around the backward.

    Only a loop that counts from 0 has one; else it is None.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.For) or not any(n is sites.backward for n in ast.walk(node)):
            continue
        target = node.target
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name):
            kind = node.iter.func.id
            if kind == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if kind in {"range", "enumerate"} and isinstance(target, ast.Name):
                plain = len(node.iter.args) == 1
                sites.loop = target.id if plain else None
                continue
        sites.loop = None
    return sites
