"""An interrupt that came while a cell was prepared is the cell's: its first line raises it."""

from __future__ import annotations

import ast
from typing import Any


class InterruptsTheCell:
    """Puts an interrupt before the first line of the next cell that is compiled, once.

    IPython passes over what its callbacks raise, and would run the cell to its end. So a
    transformer of its syntax tree stands in the shell from the interrupt to that cell.

    Args:
        shell: The shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def arm(self) -> None:
        """Interrupt the cell that is about to run."""
        self.disarm()
        self._shell.ast_transformers = [*self._shell.ast_transformers, self]

    def disarm(self) -> None:
        """Let the next cell run: the one that was meant was never compiled."""
        others = [one for one in self._shell.ast_transformers if one is not self]
        if len(others) != len(self._shell.ast_transformers):
            self._shell.ast_transformers = others

    def visit(self, tree: ast.Module) -> ast.Module:
        """What IPython calls with the cell's tree."""
        self.disarm()
        (first,) = ast.parse("__import__('_thread').interrupt_main()").body
        tree.body.insert(0, first)
        return ast.fix_missing_locations(tree)
