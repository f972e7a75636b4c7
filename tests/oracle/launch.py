"""Environment in which Python loads the stand-in's libraries first."""

from __future__ import annotations

import atexit
import ctypes
import os
from pathlib import Path

from tests.oracle.build import MADE_FROM, build, sources

OUT = Path(__file__).parents[2] / "out" / "oracle"


def site_packages() -> Path:
    """Return the folder of this Python's torch.

    Raises:
        SystemExit: It is no build for CUDA, or there is none.
    """
    from importlib.util import find_spec

    spec = find_spec("torch")
    site = Path(str(spec.origin)).parents[1] if spec is not None else Path()
    if not (site / "torch/lib/libc10_cuda.so").exists():
        raise SystemExit("The oracle is the CUDA build of torch, which this Python does not have.")
    return site


def release_folder() -> Path:
    """Return the folder of the running release's libraries and answers."""
    (release,) = site_packages().glob("torch-*.dist-info")
    return OUT / release.name.removesuffix(".dist-info")


def compilers_own(site: Path, built: Path) -> str:
    """Return a search path with the libraries that NVRTC opens by name.

    A folder of its own: beside it lie the CUDA libraries that the stand-in takes the place of.
    """
    folder = built / "nvrtc"
    folder.mkdir(exist_ok=True)
    for library in site.glob("nvidia/*/lib/libnvrtc-builtins.so.*"):
        if not (link := folder / library.name).exists():
            link.symlink_to(library)
    others = os.environ.get("LD_LIBRARY_PATH")
    return f"{folder}:{others}" if others else str(folder)


def environment(card: str, *, count: int = 1, values: bool = False) -> dict[str, str]:
    """Return the environment for `count` cards; build missing libraries.

    Args:
        card: Its name.
        count: How many.
        values: Whether the process computes on the CPU what kernels would write (`follow_values`).
    """
    site, built = site_packages(), release_folder()
    made_from = built / MADE_FROM
    if not made_from.exists() or made_from.read_text() != sources():
        build(site, built)
    # One process must not see another's memory.
    state = built / f"state.{os.getpid()}"
    atexit.register(state.unlink, missing_ok=True)
    others = os.environ.get("LD_PRELOAD")
    return {
        **os.environ,
        "LD_PRELOAD": (built / "preload").read_text() + (f":{others}" if others else ""),
        "LD_LIBRARY_PATH": compilers_own(site, built),
        "STANDIN_GPU": card,
        "STANDIN_COUNT": str(count),
        "STANDIN_SITE": str(site),
        "STANDIN_STATE": str(state),
        "STANDIN_VALUES": str(built / "values.so") if values else "",
        "TRITON_LIBCUDA_PATH": str(built),
    }


def follow_values() -> None:
    """In a process that was started for it: kernels write what the CPU computes (values.cpp)."""
    if path := os.environ.get("STANDIN_VALUES"):
        import torch  # noqa: F401 - the library finds it in the process

        ctypes.CDLL(path).standin_follow()
