"""Install packages into an environment, torch in a fitting build.

The CPU build of torch is taken where there is no NVIDIA driver. uv itself has the addresses of the
builds of torch (`--torch-backend auto` chooses by the driver). If uv is missing, or cannot reach
them, pip takes what it finds. This is printed first.

Keep the syntax to that of Python 3.8, like that of the scripts that import this.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WORTH_A_LINE = 20.0
"""MB of a file from which on its download is printed."""


def print_line(text: str) -> None:
    """Print a line at once, before the output of what it announces."""
    print(text, flush=True)


def python_of(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(folder: Path, *words: str) -> None:
    """Install packages as `pip install` does, and report progress.

    uv installs a pinned torch and what comes with it, where it can.

    Args:
        folder: The environment.
        words: What follows `pip install`. A pinned `torch==` is the build for this machine.
    """
    begin = time.monotonic()
    pinned = next((one for one in words if re.match(r"torch==[^=]", one)), None)
    if pinned is None or not _by_uv(folder, pinned, words):
        if pinned is not None:
            _announce(folder, pinned)
        _by_pip(folder, words)
    print_line(f"  installed after {time.monotonic() - begin:.0f} s")


def pip(folder: Path, *arguments: str, labextension: bool = False) -> None:
    """Run the environment's pip quietly; exit with a message if it fails.

    Args:
        folder: The environment.
        arguments: What follows `pip`.
        labextension: Let hatch_build.py compile the JupyterLab extension: about a minute, which the
            environments that need no JupyterLab do without.
    """
    command = [*_pip_of(folder), *arguments, "-qq", "--disable-pip-version-check"]
    environment = _environment(labextension=labextension)
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
        _give_up()


def _by_uv(folder: Path, pinned: str, words: tuple[str, ...]) -> bool:
    """Install with uv; return whether that worked.

    uv does not read pip's settings of other sources, so it is not used with any.
    """
    if _pip_has_sources():
        return False
    uv = _uv(folder)
    if uv is None:
        return False
    front = [uv, "pip", "install", "--python", str(python_of(folder)), "--torch-backend", "auto"]
    once = dict(_environment(), UV_HTTP_RETRIES="0")
    tried = [*front, "--dry-run", pinned]
    done = subprocess.run(tried, env=once, capture_output=True, text=True, check=False)
    if done.returncode:
        print_line("  uv cannot reach the builds of torch from here; pip takes what it finds.")
        return False
    found = re.search(r"\+ torch==(\S+)", done.stderr)
    print_line(f"  uv takes torch {found[1] if found else pinned}, {_driver()}.")
    return not subprocess.run(
        [*front, *words], cwd=ROOT, env=_environment(), check=False
    ).returncode


def _uv(folder: Path) -> str | None:
    """Return the path of uv; None without one.

    It is the machine's. On Linux without a driver, where pip's own choice may be gigabytes too
    large, pip brings one: a file of 20 MB, in a folder of the environment.
    """
    found = shutil.which("uv")
    if found or _has_driver() or platform.system() != "Linux":
        return found  # only there pip's own choice may be gigabytes too large
    place = folder / "uv"
    command = [*_pip_of(folder), "install", "-qq", "--target", str(place), "uv"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    own = place / "bin" / "uv"
    return str(own) if own.exists() else None


def _announce(folder: Path, pinned: str) -> None:
    """Print which build of torch pip will take, and its size.

    The size is that with all that it needs.
    """
    if platform.system() != "Linux":
        return
    if sys.prefix == sys.base_prefix and importlib.util.find_spec("torch"):
        print_line("  This Python has a torch already; the environment gets its own.")
    chosen = _chosen_by_pip(folder, "--no-deps", pinned)
    small = any("+cpu" in version for version, _ in chosen)
    if not small:
        chosen = _chosen_by_pip(folder, pinned)
    if not chosen:
        print_line(f"  pip does not say which build of {pinned} it takes, and how large that is.")
        return
    size = sum(_size(address) for _, address in chosen) / 1e9
    build = "the CPU build" if small else "the CUDA build with its libraries"
    much = f"{size:.1f} GB" if size else "an unknown amount"
    print_line(f"  pip takes {build} of {pinned}, {much} to load; {_driver()}.")
    if not small and not _has_driver():
        print_line(
            "  Without a card the CPU build (0.2 GB) is enough: pip takes it where it knows an "
            "index or a folder that has it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS)."
        )


def _chosen_by_pip(folder: Path, *words: str) -> list[tuple[str, str]]:
    """Return version and address of all that pip would install.

    Empty if pip does not report it.
    """
    ask = ["install", "-qq", "--dry-run", "--ignore-installed", "--report", "-", *words]
    done = subprocess.run([*_pip_of(folder), *ask], capture_output=True, text=True, check=False)
    try:
        rows = json.loads(done.stdout)["install"]
    except (ValueError, KeyError):
        return []
    return [(row["metadata"]["version"], row["download_info"]["url"]) for row in rows]


def _size(address: str) -> int:
    """Return the bytes of a file at an address; 0 if they are not known."""
    try:
        asked = urllib.request.Request(address, method="HEAD")  # noqa: S310 - what pip would load
        with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
            return int(answer.headers.get("Content-Length", 0))
    except (OSError, ValueError):
        return 0


def _by_pip(folder: Path, words: tuple[str, ...]) -> None:
    """Install with pip; exit with its last lines if it fails.

    Printed are a line for each large file and one for the unpacking.
    """
    options = ["--disable-pip-version-check", "--no-warn-script-location", "--progress-bar", "off"]
    command = [*_pip_of(folder), "install", "--no-compile", *options, *words]
    said = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            _print_size(line)
    if process.returncode:
        print("".join(said[-40:]), file=sys.stderr)
        _give_up()


def _print_size(line: str) -> None:
    file = re.match(r"\s*(Downloading|Using cached) (\S+) \(([\d.]+) MB\)", line)
    if file and float(file[3]) >= _WORTH_A_LINE:
        print_line(f"  {file[1].lower()} {file[2].rpartition('/')[2]}, {file[3]} MB")
    elif line.startswith("Installing collected packages:"):
        print_line(f"  unpacking {line.count(',') + 1} packages")


def _pip_of(folder: Path) -> list[str]:
    """Return the command of the environment's pip.

    An environment without pip is served by that of the Python that runs this.
    """
    python = str(python_of(folder))
    own = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
    if own.returncode == 0:
        return [python, "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", python]


def _pip_has_sources() -> bool:
    """Return whether pip is set to use an index or a folder.

    Then pip alone is used.
    """
    ask = [sys.executable, "-m", "pip", "config", "list"]  # with the environment's settings
    told = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    return bool(re.search(r"[.:](index-url|extra-index-url|find-links|no-index)=", told))


def _has_driver() -> bool:
    return bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia/version").exists()


def _driver() -> str:
    return "an NVIDIA driver is here" if _has_driver() else "no NVIDIA driver is here"


def _environment(*, labextension: bool = False) -> dict[str, str]:
    return dict(os.environ, **({} if labextension else {"NBMEM_SKIP_LABEXTENSION": "1"}))


def _give_up() -> None:
    raise SystemExit(
        "pip could not install what is needed; its own message is above. "
        "Without a network, --here runs with the packages that this Python has."
    )
