"""Run tests on CPython 3.14 for Node.js (npm's package pyodide).

It serves where there is no other Python of this version.

That build has no numpy, threads or processes here, so that only tests without them are run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from installing import ROOT, print_line

PYODIDE = "pyodide@314.0.7"
"""CPython 3.14.2."""
PACKAGES = ("hypothesis>=6.140", "pytest>=8.4")
FOLDER = ROOT / ".venv-3.14"


def prepare(*, fresh: bool) -> str | None:
    """Install the build and pytest; return why that is not possible.

    They are in a folder of their own. None if all went well.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "npm is not on this machine"
    done = FOLDER / PYODIDE
    if done.exists() and not fresh:
        return None
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    print_line(f"Installing into {FOLDER.name}: {', '.join((PYODIDE, *PACKAGES))}")
    words = ("install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", PYODIDE)
    if subprocess.run([npm, *words], check=False).returncode:
        return f"npm could not install {PYODIDE}"
    pure = ("--python-version", "3.14", "--platform", "any", "--only-binary", ":all:")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER / "site"))
    if subprocess.run([*pip, *pure, *PACKAGES], check=False).returncode:
        return "pip could not install pytest for it"
    done.touch()
    return None


def command() -> list[str]:
    """Return the command that runs the tests, once they are prepared."""
    package = FOLDER / "node_modules" / "pyodide"
    script = Path(__file__).with_name("pyodide.mjs")
    inside = "tools/inside_pyodide.py"
    return ["node", str(script), str(package), str(ROOT), str(FOLDER / "site"), inside]
