"""Virtual environments of the project, made with Python and its pip.

The entry scripts beside this file run before anything is installed and on any Python 3. Keep their
syntax to that of Python 3.8, so that an old one gets a message instead of a SyntaxError.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from installing import ROOT, install, pip, print_line, python_of

OLDEST = (3, 11)
_STAMP = "nbmem-setup.json"


def require_python(version: tuple[int, ...] = sys.version_info[:3]) -> None:
    """Exit with a message if this Python is too old for nbmem."""
    if version < OLDEST:
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        raise SystemExit(
            f"nbmem needs Python {oldest} or newer; {sys.executable or 'this one'} is {found}. "
            f"Run this with a newer one, for example: python{oldest} {' '.join(sys.argv)}"
        )


def requirements(*groups: str) -> list[str]:
    """Return the packages of dependency groups in pyproject.toml.

    Included groups are resolved.
    """
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
    """Create or reuse an environment with some dependency groups.

    It also holds the project, unless `project` is false.

    Args:
        name: Folder of the environment, beside pyproject.toml.
        groups: Dependency groups of pyproject.toml.
        interpreter: The Python to make it with.
        project: Install nbmem itself (editable) with its dependencies, too.
        fresh: Make it anew, whatever is there.

    Returns:
        The environment's Python.
    """
    _allow_bytecode_files()
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
    print_line(f"Installing into {name}: {', '.join(['nbmem'] * project + wanted)}")
    install(folder, *(["--editable", str(ROOT)] if project else []), *wanted)
    (folder / _STAMP).write_text(json.dumps(stamp, indent=1), encoding="utf-8")
    return python_of(folder)


def prepare_cuda_models() -> Path:
    """Prepare torch's CUDA build with packages of models; return its Python.

    What it costs is printed first.
    """
    print_line(
        "This environment holds the CUDA build of torch, torchvision, timm and transformers: about "
        "5 GB, in .venv-cuda. No driver and no card are needed."
    )
    return prepare(".venv-cuda", "torch-cuda", "accuracy", "test")


def hand_over(command: list[str], env: dict[str, str] | None = None) -> int:
    """Run a program in place of this one; return its exit status.

    Ctrl-C reaches both: the program must end what it has started and report how far it came.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # an ignored Ctrl-C stays ignored, in the program, too
        signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, cwd=str(ROOT), env=env, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def this_python() -> Path:
    """Return this Python, with the project on PYTHONPATH.

    Packages are those that it has.
    """
    _allow_bytecode_files()
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([known] if known else [])])
    return Path(sys.executable)


def add_labextension(folder: Path) -> None:
    """Add the JupyterLab extension to an environment.

    It is compiled if that has not been done yet.
    """
    built = ROOT / "nbmem" / "labextension"
    if not (built / "package.json").exists():
        print_line("Compiling the JupyterLab extension, which takes a minute.")
        wheels = ["--wheel-dir", str(ROOT / "out" / "wheel")]
        pip(folder, "wheel", "--no-deps", *wheels, str(ROOT), labextension=True)
    place = folder / "share" / "jupyter" / "labextensions" / "nbmem-labextension"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(built, place)


def find_python(version: str) -> str | None:
    """Return an interpreter of this version; None if there is none.

    It is on the path or among pyenv's, and really runs.
    """
    names = [shutil.which(f"python{version}")]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=False)
        kept = Path(root.stdout.strip() or ".", "versions").glob(f"{version}.*")
        names += [str(python_of(folder)) for folder in sorted(kept)]
    probe = ["-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    for name in filter(None, names):
        answer = subprocess.run([name, *probe], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return name
    return None


def missing_chromium() -> str | None:
    """Return why there is no Chromium; None if there is one.

    On a CI machine, with root's rights, it is installed by apt-get.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    if os.environ.get("NBMEM_CHROMIUM") or any(map(shutil.which, names)):
        return None
    root = getattr(os, "geteuid", lambda: 1)() == 0
    if not (root and os.environ.get("CI") and shutil.which("apt-get")):
        return "there is no Chromium here; on Debian, `apt-get install chromium` brings one"
    for words in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", "chromium"]):
        if subprocess.run(["apt-get", *words], stdout=subprocess.DEVNULL, check=False).returncode:  # noqa: S607
            return f"there is no Chromium here, and `apt-get {words[0]}` has failed"
    return None


def packages_of(python: Path) -> str:
    """Return the folder in which a Python has its packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.check_output([str(python), "-c", code], text=True).strip()


def _allow_bytecode_files() -> None:
    """Let the processes that are started from here write bytecode files.

    Packages are installed without them. Where the shell forbids Python to write any, each process
    would compile torch anew: 5 to 10 s.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _create(folder: Path, interpreter: str) -> None:
    """Create an empty environment; without ensurepip it has no pip.

    Debian's Python comes without ensurepip but with a pip.
    """
    shutil.rmtree(folder, ignore_errors=True)
    make = [interpreter, "-m", "venv", str(folder)]
    if subprocess.run(make, capture_output=True, check=False).returncode:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([*make, "--without-pip"], check=True)


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
    """Return the stamp of a finished set-up; empty without one."""
    try:
        stamp: dict[str, Any] = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if python_of(folder).exists() else {}
