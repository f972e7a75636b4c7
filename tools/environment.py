"""Environments of the project's own, made with nothing but Python and its pip.

The entry scripts beside this file run before anything is installed and on any Python 3, so that an
old one gets a sentence instead of a SyntaxError: keep their syntax to that of Python 3.8.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
_STAMP = "nbmem-setup.json"


def require_python(version: tuple[int, ...] = sys.version_info[:3]) -> None:
    """End with a sentence if this Python is too old for nbmem."""
    if version < OLDEST:
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        raise SystemExit(
            f"nbmem needs Python {oldest} or newer; {sys.executable or 'this one'} is {found}. "
            f"Run this with a newer one, for example: python{oldest} {' '.join(sys.argv)}"
        )


def python_of(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def requirements(*groups: str) -> list[str]:
    """What pyproject.toml lists under these dependency groups, included groups resolved."""
    listed: list[str] = []
    table = _pyproject()["dependency-groups"]
    for group in groups:
        for entry in table[group]:
            listed += [entry] if isinstance(entry, str) else requirements(entry["include-group"])
    return list(dict.fromkeys(listed))


def prepare(
    name: str,
    *groups: str,
    interpreter: str = sys.executable,
    project: bool = True,
    fresh: bool = False,
) -> Path:
    """Make an environment hold the project and some dependency groups; reuse it if it does.

    Args:
        name: Folder of the environment, beside pyproject.toml.
        groups: Dependency groups of pyproject.toml.
        interpreter: The Python to make it with.
        project: Install nbmem itself (editable) with its dependencies, too.
        fresh: Make it anew, whatever is there.

    Returns:
        The environment's Python.
    """
    folder = ROOT / name
    stamp = {"python": _identify(interpreter), "lists": _digest_of_lists(), "groups": list(groups)}
    held = {} if fresh else _read_stamp(folder)
    same_python = held.get("python") == stamp["python"]
    if same_python and held["lists"] == stamp["lists"] and set(groups) <= set(held["groups"]):
        return python_of(folder)
    if same_python:
        stamp["groups"] = list(dict.fromkeys([*held["groups"], *groups]))
    else:
        _create(folder, interpreter)
    wanted = requirements(*stamp["groups"])
    say(f"Installing into {name}: {', '.join(['nbmem'] * project + wanted)}")
    _warn_of_torch(wanted)
    pip(folder, "install", *(["--editable", str(ROOT)] if project else []), *wanted)
    (folder / _STAMP).write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    return python_of(folder)


def this_python() -> Path:
    """The Python that runs this, with the project on its path and whatever else it has."""
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([known] if known else [])])
    return Path(sys.executable)


def pip(folder: Path, *arguments: str, labextension: bool = False) -> None:
    """Run the environment's pip; a base Python's pip serves one that has none.

    Args:
        folder: The environment.
        arguments: What follows `pip`.
        labextension: Let hatch_build.py compile the JupyterLab extension: about a minute, which the
            environments that need no JupyterLab do without.
    """
    python = str(python_of(folder))
    own = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
    front = [python, "-m", "pip"]
    if own.returncode:
        front = [sys.executable, "-m", "pip", "--python", python]
    quiet = ["-qq", "--disable-pip-version-check"]
    if arguments[0] == "install":
        quiet += ["--no-warn-script-location"]
    environment = dict(os.environ)
    if not labextension:
        environment["NBMEM_SKIP_LABEXTENSION"] = "1"
    done = subprocess.run([*front, *arguments, *quiet], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise SystemExit(
            "pip could not install what is needed; its own message is above. "
            "Without a network, --here runs with the packages that this Python has."
        )


def add_labextension(folder: Path) -> None:
    """Give an environment's JupyterLab the extension, compiled if need be."""
    built = ROOT / "nbmem" / "labextension"
    if not (built / "package.json").exists():
        say("Compiling the JupyterLab extension, which takes a minute.")
        wheels = ["--wheel-dir", str(ROOT / "out" / "wheel")]
        pip(folder, "wheel", "--no-deps", *wheels, str(ROOT), labextension=True)
    place = folder / "share" / "jupyter" / "labextensions" / "nbmem-labextension"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(built, place)


def say(text: str) -> None:
    """Print a line at once, so that it stands before the output of what it announces."""
    print(text, flush=True)


def _create(folder: Path, interpreter: str) -> None:
    """Make an empty environment; Debian's Python comes without ensurepip but with a pip."""
    shutil.rmtree(folder, ignore_errors=True)
    make = [interpreter, "-m", "venv", str(folder)]
    if subprocess.run(make, capture_output=True, check=False).returncode:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([*make, "--without-pip"], check=True)


def _warn_of_torch(wanted: list[str]) -> None:
    pinned = [one for one in wanted if one.startswith("torch==") and "===" not in one]
    if not pinned:
        return
    if sys.prefix == sys.base_prefix and importlib.util.find_spec("torch"):
        say("This Python has a torch already: it stays as it is, the environment gets its own.")
    if platform.system() == "Linux":
        card = "A driver is here" if shutil.which("nvidia-smi") else "No NVIDIA driver is here"
        say(
            f"{card}. {pinned[0]}: the default index has the CUDA build, gigabytes with its "
            "libraries; where pip knows an index or a folder with the CPU build "
            "(PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), it takes that one, about 0.2 GB."
        )


def _identify(interpreter: str) -> str:
    if interpreter == sys.executable:
        return f"{sys.base_prefix} {platform.python_version()}"
    code = "import platform, sys; print(sys.base_prefix, platform.python_version())"
    return subprocess.check_output([interpreter, "-c", code], text=True).strip()


def _pyproject() -> dict[str, Any]:
    import tomllib  # new in 3.11, hence not above

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _digest_of_lists() -> str:
    lists = {key: _pyproject()[key] for key in ("project", "build-system", "dependency-groups")}
    return hashlib.sha256(json.dumps(lists, sort_keys=True).encode()).hexdigest()[:16]


def _read_stamp(folder: Path) -> dict[str, Any]:
    """What an earlier set-up noted at its end; empty if it did not get there."""
    try:
        stamp: dict[str, Any] = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if python_of(folder).exists() else {}
