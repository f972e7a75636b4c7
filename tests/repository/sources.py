"""The project's modules, and what is defined in each."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted([*ROOT.glob("nbmem/**/*.py"), *ROOT.glob("tools/*.py")])
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """List the module itself, and its classes and functions."""
    return [node for node in ast.walk(tree(path)) if isinstance(node, DOCUMENTED)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))
