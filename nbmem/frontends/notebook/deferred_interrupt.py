"""Deliver an interrupt that came before a cell to its first line."""

from __future__ import annotations

import ast
from typing import Any


class CellInterrupter:
    """An AST transformer that interrupts the next compiled cell, once.

    IPython ignores exceptions of its callbacks, and would run the cell to its end. So a transformer
    of its syntax tree is installed from the interrupt to that cell.

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
        """Remove the transformer, so that the next cell runs."""
        others = [one for one in self._shell.ast_transformers if one is not self]
        if len(others) != len(self._shell.ast_transformers):
            self._shell.ast_transformers = others

    def visit(self, tree: ast.Module) -> ast.Module:
        """Insert the interrupt into a cell's tree, and disarm.

        IPython calls this with the tree.
        """
        self.disarm()
        (first,) = ast.parse("__import__('_thread').interrupt_main()").body
        tree.body.insert(0, first)
        return ast.fix_missing_locations(tree)
