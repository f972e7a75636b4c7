"""Set the project up and run the quickstart notebook.

Nothing but Python and its pip is needed. The notebook runs on the NVIDIA GPU if there is one, else
on nbmem's virtual one. The report is printed; the executed notebook, the recording and the report
as an interactive page are left in `out/`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
from pathlib import Path

from environment import add_labextension, prepare, require_python, this_python
from installing import ROOT, print_line

NOTEBOOK = ROOT / "notebooks" / "01_quickstart.ipynb"


def main() -> int:
    """Set up, execute and show; return 0 if the notebook ran to its end."""
    require_python()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", nargs="?", type=Path, default=NOTEBOOK, help="another notebook")
    parser.add_argument("--lab", action="store_true", help="open it in JupyterLab afterwards")
    parser.add_argument(
        "--here", action="store_true", help="use this Python's packages, install nothing"
    )
    options = parser.parse_args()
    groups = ["torch", "demo", *(["run", "lab"] if options.lab else [])]
    python = str(this_python() if options.here else prepare(".venv", *groups))

    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    execute = [python, str(ROOT / "tools" / "execute.py"), str(options.notebook), str(out)]
    status = subprocess.run(execute, check=False).returncode
    if status == 0 and options.lab:
        if not options.here:
            add_labextension(Path(python).parents[1])
        print_line("\nOpening JupyterLab; end it with Ctrl-C.")
        lab = [python, "-m", "jupyterlab", str(out / options.notebook.name)]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            lab.append("--allow-root")  # in a container root is often the only user
        with contextlib.suppress(KeyboardInterrupt):  # JupyterLab has taken it already
            status = subprocess.run(lab, cwd=out, check=False).returncode
    return status


if __name__ == "__main__":
    raise SystemExit(main())
