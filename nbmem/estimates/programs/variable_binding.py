"""Find where a program's variable gets its value, and replace it there.

A variable is a name (`batch`), an attribute (`cfg.batch_size`) or an entry (`cfg['batch_size']`).
Its value is a whole number that the program writes, that the notebook holds, or that is one of a
script's arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest
from nbmem.estimates.programs import assignments

_OPTION = re.compile(r"-*[A-Za-z][\w-]*")


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable of a cell or script, and where its value is written.

    Attributes:
        name: The variable.
        value: What it is in the program as it stands.
        line: Line where the program writes it; None where it does not.
        argument_index: Its index in the script's arguments; None if it is not one of them.
    """

    name: str
    value: int
    line: int | None = None
    argument_index: int | None = None


def in_script(name: str, source: str, arguments: Sequence[str] = ()) -> Binding:
    """Find how a script's variable gets its value.

    Raises:
        UsageError: It cannot be replaced, or there is none.
    """
    plain = _plain(name) if _OPTION.fullmatch(name) else name
    given = _given(plain, arguments)
    if given is not None:
        return given
    target = assignments.target(plain)
    tree = ast.parse(source)
    found = _written(tree, target) or assignments.keywords(tree, target)
    if found:
        return _only(found, target)
    text = ast.unparse(target)
    strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    options = (s for s in strings if isinstance(s, str) and s.startswith("--"))
    for option in options:
        if _plain(option) == plain:
            raise UsageError(
                f"{text} is the script's argument {option}, and it was not given, so there is "
                f"nothing to vary. Write it at the end of the line: -- {option} 32."
            )
    raise _nowhere(text, "the script", "", _numbers(tree))


def in_cell(
    name: str, source: str, namespace: Mapping[str, Any], copied: Collection[str]
) -> Binding:
    """Find how a cell's variable gets its value.

    Args:
        name: The variable.
        source: The cell, in plain Python.
        namespace: The notebook's names.
        copied: Those of them that the cell uses, by itself or through what it calls.

    Raises:
        UsageError: It cannot be replaced, or there is none.
    """
    target = assignments.target(name)
    tree = ast.parse(source)
    text = ast.unparse(target)
    found = _written(tree, target)
    if found:
        return _only(found, target)
    value = _held(namespace, target)
    used = assignments.root(target) in copied
    if value is not None and used:
        return Binding(text, value)
    found = assignments.keywords(tree, target)
    if found:
        return _only(found, target)
    if value is None:
        also = " and the notebook has no whole number of that name"
        held = [n for n in namespace if type(namespace[n]) is int and not n.startswith("_")]
        raise _nowhere(text, "the cell", also, [*_numbers(tree), *held])
    raise UsageError(
        f"{text} is {value} in the notebook, but the cell does not use it, so varying it "
        "would change nothing. Make what depends on it (a batch, a DataLoader) inside the cell."
    )


def compile_with_value(source: str, file: str, binding: Binding | None, value: int | None) -> Any:
    """Compile the program, with another literal for the variable if given."""
    tree = ast.parse(source, file)
    if binding is not None and binding.line is not None and value is not None:
        target = assignments.target(binding.name)
        (place,) = _written(tree, target) or assignments.keywords(tree, target)
        assert place.now is not None  # noqa: S101 - a number was read there
        place.put(ast.copy_location(ast.Constant(value), place.now))
    return compile(ast.fix_missing_locations(tree), file, "exec")


def rewrite_source(source: str, binding: Binding, value: int) -> str | None:
    """Return the source with another number for the variable.

    None where the source does not write it exactly once, on one line, or that line is not ASCII.
    """
    target = assignments.target(binding.name)
    tree = ast.parse(source)
    found = _written(tree, target) or assignments.keywords(tree, target)
    if len(found) != 1 or found[0].now is None:
        return None
    now, lines = found[0].now, source.splitlines()
    line = lines[now.lineno - 1]
    if now.end_lineno != now.lineno or not line.isascii():  # columns are counted in bytes
        return None
    lines[now.lineno - 1] = f"{line[: now.col_offset]}{value}{line[now.end_col_offset :]}"
    return "\n".join(lines) + "\n"


def put(namespace: MutableMapping[str, Any], name: str, value: int) -> None:
    """Set a variable in a copy of the notebook's namespace."""
    target = assignments.target(name)
    if isinstance(target, ast.Name):
        namespace[target.id] = value
    elif isinstance(target, ast.Subscript):
        assignments.value(namespace, target.value)[ast.literal_eval(target.slice)] = value
    elif isinstance(target, ast.Attribute):
        owner = assignments.value(namespace, target.value)
        try:
            setattr(owner, target.attr, value)
        except AttributeError:  # a frozen dataclass
            object.__setattr__(owner, target.attr, value)


def _plain(option: str) -> str:
    """Convert an option such as `--batch-size` to argparse's name for it."""
    return option.lstrip("-").replace("-", "_")


def _given(name: str, arguments: Sequence[str]) -> Binding | None:
    """Find the variable among a script's arguments.

    It is given as `--batch-size 32` or `--batch-size=32`. None if it is not given.
    """
    for number, word in enumerate(arguments):
        option, joined, value = word.partition("=")
        if not option.startswith("-") or _plain(option) != name:
            continue
        at = number if joined else number + 1
        value = value if joined else "".join(arguments[at : at + 1])
        if not value.isdecimal():
            raise UsageError(f"The argument {option} is not a whole number: {value or 'nothing'}.")
        return Binding(name, int(value), argument_index=at)
    return None


def _written(tree: ast.Module, target: ast.expr) -> list[assignments.Assignment]:
    """List the places that assign the variable or build its owner."""
    found = assignments.find_assignments(tree, target)
    if found or isinstance(target, ast.Name):
        return found
    text = ast.unparse(target)
    owner = target.value  # type: ignore[attr-defined] # an attribute or an entry
    made = assignments.find_assignments(tree, owner)
    found = [part for place in made for part in assignments.parts(place.now, target)]
    if made and not found:
        raise UsageError(
            f"{ast.unparse(owner)} is made in the program (line {made[-1].line}), and its "
            f"{assignments.part(target)} is not written there as a whole number, so no other value "
            f"can be put there. Write `{text} = 32` on a line of its own below it."
        )
    return found


def _only(found: list[assignments.Assignment], target: ast.expr) -> Binding:
    text = ast.unparse(target)
    if len(found) > 1:
        raise UsageError(
            f"{text} is assigned more than once (lines {', '.join(str(p.line) for p in found)}), "
            "so it is not clear which of them to vary. Assign it once, as a number, and derive the "
            "others."
        )
    (place,) = found
    number = place.number()
    if number is None:
        raise UsageError(
            f"{text} is not assigned as a whole number at the top level (line {place.line}), so no "
            f"other value can be put there. Write it as `{text} = 32`, on a line of its own."
        )
    return Binding(text, number, place.line)


def _held(namespace: Mapping[str, Any], target: ast.expr) -> int | None:
    """Return the integer that the notebook has for a variable, or None."""
    try:
        value = assignments.value(namespace, target)
    except Exception:  # noqa: BLE001 - an object's attribute or item access may raise anything
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numbers(tree: ast.Module) -> list[str]:
    """List the names that a program assigns a whole number once."""
    names = sorted(assignments.bound(ast.unparse(tree)))
    places = {name: assignments.find_assignments(tree, ast.Name(name)) for name in names}
    return [n for n, found in places.items() if len(found) == 1 and found[0].number() is not None]


def _nowhere(text: str, where: str, also: str, known: Iterable[str]) -> UsageError:
    return UsageError(
        f"{text} is not assigned in {where}{also}, so there is nothing to vary. "
        f"{suggest(text, known, '`{}`')}"
        f"Put `{text} = 32` on a line of its own in {where}, and use {text} below it."
    )
