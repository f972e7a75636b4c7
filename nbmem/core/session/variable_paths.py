"""Take a path to a tensor apart: its variable and its function.

parse_path("local preds[3] of evaluate()")    # preds[3], evaluate()
parse_path("x closed over by step")           # x, closed over by step
parse_path("the graph of losses[0]")          # losses[0], by its graph
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nbmem.core.session.tensor_names import GRAPH_OF, IN_TRACEBACK, LOCAL

_LOCAL = re.compile(rf"{LOCAL}(.+?) of (\S+\(\)|the (?:generator|coroutine) .+)")
_CLOSURE = re.compile(r"(.+) closed over by (.+)")
_VARIABLE = re.compile(r"[^\W\d]\w*")


class VariablePath(NamedTuple):
    """A path to a tensor, taken apart.

    Attributes:
        path: The path as code: `preds[3]`.
        function: What has the variable: `evaluate()`, `the generator batches`; empty for a variable
            of the notebook.
        closed_over_by: The function that closes over the variable, or no text.
        by_graph: Whether only the graph of the tensor at that path leads there.
    """

    path: str
    function: str = ""
    closed_over_by: str = ""
    by_graph: bool = False

    @property
    def variable(self) -> str:
        """The path's first name."""
        found = _VARIABLE.match(self.path)
        return found[0] if found else self.path

    @property
    def where(self) -> str:
        """The function as it follows the path in a sentence: ` in evaluate()`."""
        if self.closed_over_by:
            return f" closed over by {self.closed_over_by}"
        return f" in {self.function}" if self.function else ""

    @property
    def can_be_deleted(self) -> bool:
        """True if a `del` in the notebook or in a function removes the variable."""
        return not self.closed_over_by and (not self.function or self.function.endswith("()"))


def parse_path(path: str) -> VariablePath:
    """Take a holder's path apart, or a tensor's name without its shape."""
    by_graph = path.startswith(GRAPH_OF)
    text = path.removeprefix(GRAPH_OF).partition(f" {IN_TRACEBACK}")[0]
    if " " not in text:  # as most are: no words around the code
        return VariablePath(text, by_graph=by_graph)
    if found := _LOCAL.fullmatch(text):
        return VariablePath(found[1], function=found[2], by_graph=by_graph)
    if found := _CLOSURE.fullmatch(text):
        return VariablePath(found[1], closed_over_by=found[2], by_graph=by_graph)
    return VariablePath(text, by_graph=by_graph)
