"""Insert a remedy's lines into a program's source, and format the diff."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbmem.estimates.programs import user_names

if TYPE_CHECKING:
    from nbmem.estimates.programs.user_names import ProgramNames, TrainingStep


@dataclass(slots=True)
class Edit:
    """Changes of one source, by whole lines.

    Attributes:
        source: What is changed.
        own: What it calls its parts.
        sites: Where they stand.
    """

    source: str
    own: ProgramNames
    sites: TrainingStep
    _lines: list[str]
    _changes: dict[int, tuple[int, list[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str) -> Edit:
        """Parse a source and start with no changes."""
        own, sites = user_names.read(source)
        return cls(source, own, sites, source.splitlines())

    def replace(self, first: ast.stmt, last: ast.stmt, text: str) -> bool:
        """Replace statements that have their lines to themselves.

        Return False, and change nothing, where they share a line with other code.
        """
        start, end = first.lineno - 1, last.end_lineno or last.lineno
        before = self._lines[start][: first.col_offset]
        after = self._lines[end - 1][last.end_col_offset or 0 :]
        if before.strip() or (after.strip() and not after.strip().startswith("#")):
            return False
        count, there = self._changes.get(start, (0, []))
        above = [] if count else there
        new = [*above, *textwrap.indent(text, before).splitlines()]
        self._changes[start] = (end - start, new)
        return True

    def insert(self, line: int, text: str, like: ast.stmt | None = None) -> bool:
        """Insert text above a line, counted from 0, indented like a statement.

        It stands below what was inserted there before, and above what replaces the line.
        """
        indent = " " * (like.col_offset if like is not None else 0)
        count, there = self._changes.get(line, (0, []))
        new = textwrap.indent(text, indent).splitlines()
        self._changes[line] = (count, [*new, *there] if count else [*there, *new])
        return True

    def result(self) -> str:
        """Return the changed source."""
        lines = list(self._lines)
        for start in sorted(self._changes, reverse=True):
            count, new = self._changes[start]
            lines[start : start + count] = new
        return "\n".join(lines) + "\n"

    def text(self, node: ast.AST) -> str:
        """Return the source of a node."""
        return ast.get_source_segment(self.source, node) or ""

    # The edits that remedies make; each returns whether it was possible.

    def insert_at_top(self, code: str) -> bool:
        """Insert lines at the top, below the docstring and future imports."""
        first = next((i for i, line in enumerate(self._lines) if line.strip()), 0)
        for number, statement in enumerate(ast.parse(self.source).body):
            future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            told = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (future or (told and not number)):
                break
            first = statement.end_lineno or statement.lineno
        return self.insert(first, code)

    def insert_after_model(self, code: str) -> bool:
        """Insert lines between the model and its optimizer."""
        made, stepped = self.sites.model, self.sites.optimizer
        if made is not None:
            return self.insert(made.end_lineno or made.lineno, code, made)
        if stepped is not None:
            return self.insert(stepped.lineno - 1, code, stepped)
        return False

    def insert_before_optimizer(self, code: str) -> bool:
        """Insert lines above the optimizer made of `model.parameters()`."""
        made = self.sites.optimizer
        if made is None or f"{self.own.model}.parameters()" not in self.text(made):
            return False
        return self.insert(made.lineno - 1, code, made)

    def insert_before_move(self, code: str) -> bool:
        """Insert lines between the model's creation and its move to the card."""
        made, moved = self.sites.model, self.sites.moved
        if moved is not None:
            return self.insert(moved.lineno - 1, code, moved)
        if made is None:
            return False
        inside = user_names.moved_operand(made.value)
        if inside is None:
            return self.insert_after_model(code)
        if inside is made.value:
            return False
        text = f"{ast.unparse(made.targets[0])} = {self.text(inside)}"
        return self.replace(made, made, f"{text}\n{code}")

    def replace_optimizer(self, code: str, *, several: bool = False) -> bool:
        """Replace the statement that makes the optimizer.

        The new code may have several lines only with `several`.
        """
        made = self.sites.optimizer
        if made is None or ("\n" in code and not several):
            return False
        return self.replace(made, made, code)

    def with_keyword(self, name: str, value: str) -> bool:
        """Add a keyword argument to the call that makes the optimizer."""
        made = self.sites.optimizer
        if made is None or not isinstance(made.value, ast.Call):
            return False
        if any(keyword.arg == name for keyword in made.value.keywords):
            return False
        text = self.text(made)
        head = text[: text.rindex(")")].rstrip().rstrip(",")
        return self.replace(made, made, f"{textwrap.dedent(head)}, {name}={value})")

    def wrap_forward(self, context: str, backward: str = "") -> bool:
        """Wrap the forward in a context and maybe replace the backward."""
        lines = textwrap.indent("\n".join(self.own.forward), "    ")
        wrapped = f"with {context}:\n{lines}"
        forward, there = self.sites.forward, self.sites.backward
        if there is None:
            return False
        if not forward:
            return self._named(f"{wrapped}\n{backward or f'{self.own.loss}.backward()'}")
        if any("\n" in self.text(statement) for statement in forward):
            return False
        return self.replace(forward[0], forward[-1], wrapped) and (
            not backward or self.replace(there, there, backward)
        )

    def backward_as(self, text: str) -> bool:
        """Replace the backward statement."""
        there = self.sites.backward
        if there is None:
            return False
        if self.sites.forward:
            return self.replace(there, there, text)
        return self._named("\n".join([*self.own.forward, text]))

    def _named(self, text: str) -> bool:
        """Replace `criterion(model(x), y).backward()`, naming the loss."""
        there = self.sites.backward
        return there is not None and self.sites.unnamed and self.replace(there, there, text)

    def step_as(self, text: str) -> bool:
        """Replace the `optimizer.step()` statement."""
        there = self.sites.step
        return there is not None and self.replace(there, there, text)

    def every(self, parts: int) -> bool:
        """Run step and zero_grad once in so many iterations of the loop."""
        step, clear, loop = self.sites.step, self.sites.zero_grad, self.sites.loop
        backward = self.sites.backward
        if step is None or clear is None or loop is None or backward is None:
            return False
        first, last = f"if {loop} % {parts} == 0:", f"if {loop} % {parts} == {parts - 1}:"
        before = clear.lineno < backward.lineno
        done = self.replace(step, step, f"{last}\n    {self.text(step)}")
        return done and self.replace(
            clear, clear, f"{first if before else last}\n    {self.text(clear)}"
        )


def difference(before: str, after: str) -> str:
    """Return the changed lines as a diff with one line of context."""
    old, new = before.strip("\n").splitlines(), after.strip("\n").splitlines()
    found: Iterable[str] = difflib.unified_diff(old, new, lineterm="", n=1)
    return "\n".join(line for line in found if not line.startswith(("---", "+++")))
