"""Check whether the engine torch can run here, without importing torch."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from nbmem.core.errors import UsageError
from nbmem.engine import build, cache, process

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
"""Exists where NVIDIA's kernel driver is loaded."""
SEPARATORS = set(" :")
"""Characters that separate the names in LD_PRELOAD."""
_ALTERNATIVE = "Use --engine rules, which runs everywhere."


def site_packages() -> Path | None:
    """Return the folder of packages with a CUDA build of torch, or None."""
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):  # a module without a spec is in its place
        return None
    if spec is None or spec.origin is None:
        return None
    site = Path(spec.origin).parents[1]
    return site if (site / "torch/lib/libc10_cuda.so").exists() else None


def torch_version() -> str:
    """Return the installed version of torch, or an empty text."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def unavailable() -> str | None:
    """Return why the engine cannot run here, or None if it can."""
    site = site_packages()
    checks = (
        *(_check_platform, lambda: _check_torch(site), _check_driver),
        *(lambda: _check_headers(site), _check_cache_name),
    )
    return next((reason for check in checks if (reason := check()) is not None), None)


def _check_platform() -> str | None:
    system, machine = platform.system(), platform.machine()
    if sys.platform == "linux" and machine in {"x86_64", "AMD64"}:
        return None
    return f"it is for Linux on x86-64, and this is {system or sys.platform} on {machine}"


def _check_torch(site: Path | None) -> str | None:
    if site is not None:
        return None
    if not (release := torch_version()):
        return "torch is not installed here. `pip install torch` brings the build for CUDA"
    return (
        f"torch {release} is no build for CUDA. `pip install torch` brings one on Linux (about "
        "5 GB)"
    )


def _check_driver() -> str | None:
    if process.active() or not DRIVER_VERSION.exists():
        return None
    return (
        "NVIDIA's driver is loaded on this machine, and the engine would take its place. Run on "
        "the card itself (without --gpu)"
    )


def _check_headers(site: Path | None) -> str | None:
    if site is None or next(site.glob("nvidia/*/include/cuda.h"), None):
        return None
    return (
        f"the headers of the nvidia packages are not beside torch in {site}. `pip install torch` "
        "brings them, conda does not"
    )


def _check_cache_name() -> str | None:
    if not set(str(cache.root())) & SEPARATORS:
        return None
    return (
        f"the loader takes no folder with a space or a colon in its name, and {cache.root()} has "
        "one. Name another in XDG_CACHE_HOME"
    )


def missing_tools() -> str | None:
    """Return why nothing can be compiled here, or None if it can."""
    missing = [tool for tool in build.TOOLS if shutil.which(tool) is None]
    if not missing:
        return None
    return (
        f"it is compiled at its first use, and {', '.join(missing)} cannot be found. Install a "
        "C++ compiler with binutils (Debian, Ubuntu: apt-get install g++ binutils)"
    )


def is_ready() -> bool:
    """Return whether the engine can run here and is compiled already."""
    site = site_packages()
    return site is not None and unavailable() is None and cache.is_built(site)


def require() -> Path:
    """Return torch's folder of packages if the engine can run or be compiled.

    Raises:
        UsageError: It cannot, with the reason.
    """
    site = site_packages()
    reason = unavailable()
    if reason is None and site is not None and not cache.is_built(site):
        reason = missing_tools()
    if reason is not None or site is None:
        raise UsageError(f"Cannot use the engine torch: {reason}. {_ALTERNATIVE}")
    return site
