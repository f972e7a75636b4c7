"""VS Code for the tests, from npm's package of code-server.

It is installed with what its notebooks need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "4.139.1"
"""Of code-server: VS Code 1.139.1."""
NATIVE = ("@vscode/native-watchdog", "@vscode/spdlog", "@parcel/watcher", "node-pty")
"""Compiled here; its other native modules serve what a notebook does not use."""


def install(folder: Path, node: Path) -> Path | None:
    """Install code-server once; return None if npm cannot.

    It takes 650 MB on disk.

    Args:
        folder: Where to.
        node: Folder with the programs of Node.js 24, which it needs.

    Returns:
        The package's folder.
    """
    package = folder / "node_modules" / "code-server"
    done = package / "nbmem-installed"
    if done.exists():
        return package
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vscode = package / "lib" / "vscode"
    bare = ("install", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund")
    for place, words in (
        (folder, (*bare, f"code-server@{VERSION}")),
        (vscode, bare),
        (vscode, ("rebuild", *NATIVE)),
    ):
        environment = {**os.environ, "PATH": os.pathsep.join([str(node), os.environ["PATH"]])}
        command = [str(node / "npm"), "--prefix", str(place), *words]
        if subprocess.run(command, cwd=place, env=environment, check=False).returncode:
            return None
    done.touch()
    return package
