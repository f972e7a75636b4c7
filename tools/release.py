"""Check a release: its tag, its wheel in use, its recipe.

    python3 tools/release.py --tag v1.2.3        # the tag is the version of package and changelog
    python3 tools/release.py --install WHEEL     # into an empty environment, and use it there
    python3 tools/release.py --recipe SDIST      # write out/recipe/recipe.yaml for conda-forge

The check `package` of tools/test.py does the last two with the files that it has built.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from environment import require_python
from installing import ROOT, install, print_line, python_of

VERSION_FILE = ROOT / "nbmem" / "core" / "version.py"
RECIPE = ROOT / "tools" / "recipe.yaml"
EMPTY = ROOT / "out" / "empty-environment"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the options say; return 1 if a release needs a change."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tag", help="the tag of the release")
    parser.add_argument("--install", type=Path, metavar="WHEEL", help="try a wheel")
    parser.add_argument("--recipe", type=Path, metavar="SDIST", help="write the recipe")
    options = parser.parse_args(arguments)
    problems = [] if options.tag is None else tag_problems(options.tag)
    if options.install is not None:
        problems += wheel_problems(options.install, sys.executable)
    if options.recipe is not None:
        print_line(f"{write_recipe(options.recipe)}")
    for problem in problems:
        print_line(problem)
    return 1 if problems else 0


def version() -> str:
    """Return the version of the package.

    Raises:
        LookupError: `version.py` does not say it.
    """
    found = re.search(
        r'^__version__ = "(.+)"$', VERSION_FILE.read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise LookupError(f"{VERSION_FILE} has no __version__")
    return found[1]


def tag_problems(tag: str, changelog: str | None = None) -> list[str]:
    """Return what is wrong with a tag.

    It is the version, and the changelog has its date.

    Args:
        tag: `v1.2.3`.
        changelog: Its text; None to read CHANGELOG.md.
    """
    now = version()
    problems = []
    if tag != f"v{now}":
        problems.append(f"The tag is {tag}, and {VERSION_FILE.name} says {now}.")
    if changelog is None:
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(now)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        problems.append(f"CHANGELOG.md has no date behind [{now}].")
    return problems


def wheel_problems(wheel: Path, python: str) -> list[str]:
    """Use a wheel in an empty environment; return what does not work.

    There is no torch: `nbmem demo` has to say so in one sentence.

    Args:
        wheel: Its file.
        python: The interpreter of the environment.
    """
    shutil.rmtree(EMPTY, ignore_errors=True)
    subprocess.run([python, "-m", "venv", "--without-pip", str(EMPTY)], check=True)
    install(EMPTY, str(wheel.resolve()))
    problems = []
    for words, code, wanted in (
        (("--version",), 0, rf"nbmem {re.escape(version())}\ncuDNN [^\n]*\n"),
        (("gpus",), 0, r"(.*\n)*.*T4 .*\n(.*\n)*"),
        (("demo",), 2, r"nbmem: [^\n]*torch[^\n]*\n"),
    ):
        command = [str(python_of(EMPTY)), "-I", "-m", "nbmem", *words]
        done = subprocess.run(
            command, cwd=EMPTY, capture_output=True, text=True, check=False, encoding="utf-8"
        )
        printed = done.stdout + done.stderr
        if done.returncode != code or not re.fullmatch(wanted, printed):
            problems.append(
                f"nbmem {' '.join(words)} ended with {done.returncode}: {printed[:500]}"
            )
    return problems


def write_recipe(sdist: Path) -> Path:
    """Write the recipe with the hash of a built sdist; return its path."""
    text = RECIPE.read_text(encoding="utf-8")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    text = re.sub(r"(?m)^(  url: .+)$", rf"\1\n  sha256: {digest}", text, count=1)
    target = ROOT / "out" / "recipe" / "recipe.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


if __name__ == "__main__":
    require_python()
    raise SystemExit(main())
