"""Measure the time of `import nbmem` and `%load_ext nbmem`."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

HEAVY = ("torch", "pynvml", "bokeh", "ipywidgets", "matplotlib", "pandas", "numpy", "IPython")

_CASES = {
    "import nbmem": ("", "import nbmem"),
    "%load_ext nbmem": (
        "from IPython.core.interactiveshell import InteractiveShell as S; shell = S.instance()",
        "shell.run_line_magic('load_ext', 'nbmem')",
    ),
}
_CHILD = """
import json, sys, time
{before}
had = set(sys.modules)
begin = time.perf_counter()
{timed}
took = time.perf_counter() - begin
new = sorted(set(sys.modules) - had)
print(json.dumps([took * 1e3, new]))
"""


def measure(before: str, timed: str) -> tuple[float, list[str]]:
    """Return the time of a fresh process and its imported modules."""
    code = _CHILD.format(before=before, timed=timed)
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    milliseconds, modules = json.loads(printed.splitlines()[-1])
    return milliseconds, modules


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="fresh processes for each case")
    parser.add_argument("--modules", action="store_true", help="list every module")
    options = parser.parse_args()
    for name, case in _CASES.items():
        measure(*case)  # the first process fills the file cache and writes the bytecode
        rounds = [measure(*case) for _ in range(options.rounds)]
        times, modules = [took for took, _ in rounds], rounds[-1][1]
        heavy = [module for module in HEAVY if module in modules]
        ours = sum(module.split(".")[0] == "nbmem" for module in modules)
        print(
            f"{name:<16} median {statistics.median(times):6.1f} ms of {len(times)} "
            f"({min(times):.1f} to {max(times):.1f}), {len(modules)} modules, {ours} of nbmem, "
            f"heavy: {', '.join(heavy) or 'none'}"
        )
        if options.modules:
            print("  " + "\n  ".join(modules))


if __name__ == "__main__":
    main()
