"""Count right first tips where the work is two calls deep: `python -m tests.tips.reports.nested`.

Each program's body becomes a function or a method, which `main` calls last. Many
scripts are like that. The names that a tip needs are then variables of a function that `main` does
not show.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.tips.reports.catalogue import read_reports
from tests.tips.reports.healthy_runs import CARD, programs
from tests.tips.reports.run import BrokenError, is_right, run_program, tips_of
from tests.tips.reports.table import read_results

FORMS = {
    "function": """
def run_training(args):
    {body}

def main():
    args = {{"lr": 0.1}}
    run_training(args)
""",
    "method": """
class TrainingRun:
    def start(self, args):
        {body}

def main():
    training = TrainingRun()
    training.start({{"lr": 0.1}})
""",
}
CALL = """
if __name__ == "__main__":
    main()
"""
_STAYS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def nested(text: str, form: str) -> str | None:
    """Return a program in which `main` calls what the program did; None if it cannot be done.

    Args:
        text: The program.
        form: A key of FORMS.
    """
    tree = ast.parse(text)
    stays = [one for one in tree.body if _stays(one)]
    body = [one for one in tree.body if not _stays(one)]
    mains = [one for one in stays if isinstance(one, ast.FunctionDef) and one.name == "main"]
    if mains:
        if mains[0].args.args or len(body) != 1:
            return None
        stays.remove(mains[0])
        body = mains[0].body
    if not body or any(map(_is_global_of, stays, [_assigned(body)] * len(stays))):
        return None
    margin = " " * (8 if form == "method" else 4)
    lines = ast.unparse(ast.Module(body, [])).splitlines()
    inner = FORMS[form].format(body=f"\n{margin}".join(lines))
    return ast.unparse(ast.Module(stays, [])) + "\n" + inner + CALL


def _stays(one: ast.stmt) -> bool:
    """Return whether a statement stays outside: a definition, an import or a constant."""
    targets = one.targets if isinstance(one, ast.Assign) else []
    constant = all(isinstance(name, ast.Name) and name.id.isupper() for name in targets)
    return isinstance(one, _STAYS) or _is_text(one) or (bool(targets) and constant)


def _is_text(one: ast.stmt) -> bool:
    return isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)


def _assigned(body: list[ast.stmt]) -> set[str]:
    nodes = [node for one in body for node in ast.walk(one) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _is_global_of(one: ast.stmt, names: set[str]) -> bool:
    """Return whether a definition reads one of the names without setting it."""
    nodes = [node for node in ast.walk(one) if isinstance(node, ast.Name)]
    own = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(one) if isinstance(node, ast.arg)}
    return any(node.id in names - own for node in nodes)


def right_tips(count: int, seed: int) -> Iterator[tuple[str, bool, str]]:
    """Run reports whose first tip is right as they are; yield name, verdict and first tip."""
    results = read_results()
    reports = [one for one in read_reports() if results.get(one.name, {}).get("right")]
    random.Random(seed).shuffle(reports)
    for number, report in enumerate(reports):
        form = ("function", "method")[number % 2]
        text = nested(report.program, form)
        if text is None or count == 0:
            continue
        count -= 1
        try:
            found = run_program(text, report.name, report.card)
        except BrokenError as err:
            yield report.name, False, f"BROKEN: {err}"
            continue
        tips = tips_of(found)
        right = bool(tips) and is_right(report, tips[0])
        said = f"{tips[0]['rule']}: {tips[0]['title']}" if tips else "silent"
        yield report.name, right, f"{form}, {said}"


def false_tips(count: int, seed: int) -> Iterator[tuple[str, bool, str]]:
    """Run healthy programs; yield name, whether it is silent, and its tips."""
    found = list(programs())
    random.Random(seed).shuffle(found)
    for number, (name, program) in enumerate(found):
        text = nested(program, ("function", "method")[number % 2])
        if text is None or count == 0:
            continue
        count -= 1
        try:
            tips = tips_of(run_program(text, name, CARD))
        except BrokenError as err:
            yield name, False, f"BROKEN: {err}"
            continue
        yield name, not tips, "; ".join(f"{tip['rule']}: {tip['title']}" for tip in tips)


def main() -> int:
    """Run a sample, print a line for each program, and return 1 where one is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--healthy", action="store_true", help="run healthy programs instead")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    options = parser.parse_args()
    run = false_tips if options.healthy else right_tips
    verdicts = {}
    for name, right, said in run(options.count, options.seed):
        verdicts[name] = [right, said]
        print("RIGHT" if right else "WRONG", name, said, flush=True)
    good = sum(right for right, _ in verdicts.values())
    print(
        f"{good} of {len(verdicts)} {'are silent' if options.healthy else 'first tips are right'}."
    )
    if options.json:
        options.json.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    return int(good < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
