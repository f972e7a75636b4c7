"""Compile the stand-in's libraries for one installation of torch.

Of each CUDA library that torch links there is a small one with the same soname and symbol
versions. What src/NAME.cpp does not define is generated from the prototypes of the public headers
in the nvidia packages beside torch: a function that answers success, makes up handles and gives
sizes as 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from nbmem.core.errors import NbmemError
from nbmem.core.units import KIB
from nbmem.engine.headers import PROLOGUE, Prototype, prototypes, stub
from nbmem.virtual.cards import CARDS

SOURCES = Path(__file__).parent / "src"
TOOLS = ("g++", "gcc", "nm", "readelf")
PREFIXES = {
    "libnccl": "p?nccl",
    "libcusparseLt": "cusparseLt",
    "libcufile": "cuFile",
    "libnvshmem_host": "nvshmem",
    "libcurand": "curand",
    "libcuda": "cu(?!Fi|sp|bl|so|ff|ra|dnn|da|pti)[A-Z]",
    "libnvidia-ml": "nvml",
}
"""How the symbols begin of libraries that have no symbol versions, or that torch loads by name."""
VERSIONED = ("cudart", "cublas", "cublasLt", "cusolver", "cusparse", "cufft", "cupti", "cudnn")
LINKED = {*(f"lib{name}" for name in VERSIONED), *PREFIXES}
LOADED_BY_NAME = ("libcuda.so.1", "libnvidia-ml.so.1")
WHOLE = {
    "libcublasLt": "cublasLt[A-Z]",
    "libcublas": "cublas(?!Lt|Xt)[A-Z]",
    "libcuda": PREFIXES["libcuda"],
}
"""Libraries of which cuDNN asks functions by name, so that all of their headers' are defined."""
ARCHITECTURES = (75, 80, 86, 90, 100, 120)
"""What torch's builds for CUDA 12.8 and 13.0 have code for; src/cudart.cpp chooses among them."""
SHORTEST = 10_000
"""Bytes; a shorter library of torch's only names others."""
PRELOAD, VALUES = "preload", "values.so"
"""The file that lists the libraries in the order of loading; the library of values.cpp."""
LONGEST_ERROR = 600
"""Characters of a compiler's message that are shown, its last ones."""


class BuildError(NbmemError):
    """The stand-in cannot be compiled."""


def run(*command: str | Path) -> str:
    """Run a tool and return its output.

    Raises:
        BuildError: It has failed, or is not installed.
    """
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    except OSError as err:
        raise BuildError(f"Cannot compile the engine torch: {words[0]} ({err.strerror}).") from err
    if done.returncode:
        errors = done.stderr.strip()[-LONGEST_ERROR:]
        raise BuildError(
            f"Cannot compile the engine torch: {words[0]} ended with {done.returncode}. Use "
            f"--engine rules. Its last words were:\n{errors}"
        )
    return done.stdout


def stem(soname: str) -> str:
    """Return a library's name without its versions."""
    return soname.split(".so", maxsplit=1)[0]


def libraries(site: Path) -> list[Path]:
    """Return the libraries of torch and torchvision that may link CUDA."""
    found = [*site.glob("torch/lib/lib*.so"), *site.glob("torchvision/*.so")]
    return sorted(path for path in found if path.stat().st_size > SHORTEST)


def required_symbols(site: Path) -> dict[str, dict[str, str | None]]:
    """Return the required symbols by soname, with versions or None."""
    sonames = {stem(name): name for name in LOADED_BY_NAME}
    symbols: list[str] = []
    for path in libraries(site):
        for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "-d", path)):
            if stem(name) in LINKED:
                sonames[stem(name)] = name
        undefined = run("nm", "-D", "--undefined-only", path).splitlines()
        symbols += [line.split()[-1] for line in undefined]
    found: dict[str, dict[str, str | None]] = {name: {} for name in sonames.values()}
    for symbol in symbols:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if version in found:
            found[version][name] = version
        elif version in ("", "NVSHMEM"):
            for library, prefix in PREFIXES.items():
                if library in sonames and re.match(prefix, name):
                    found[sonames[library]][name] = version or None
    return found


def compiled(source: Path, work: Path, site: Path, standard: str = "c++17") -> Path:
    """Compile one of our own sources."""
    torchs = [site / "torch/include", site / "torch/include/torch/csrc/api/include"]
    headers = [SOURCES / "compat", SOURCES, *site.glob("nvidia/*/include"), *torchs]
    made = work / f"{source.stem}.o"
    options = (f"-std={standard}", "-O1", "-fPIC", "-w", "-fvisibility=default")
    run("g++", *options, *(f"-I{path}" for path in headers), "-c", source, "-o", made)
    return made


def values(site: Path, out: Path) -> None:
    """Compile the library that computes values beside torch's kernels."""
    made = compiled(SOURCES / "values.cpp", out / "generated", site, "c++20")
    torchs = (f"-L{site}/torch/lib", "-ltorch_cpu", "-lc10", "-lc10_cuda")
    run("g++", "-shared", "-o", out / VALUES, made, *torchs, f"-L{out}", "-l:libcuda.so.1")


class Installation(NamedTuple):
    """A torch that libraries are made for.

    Attributes:
        site: The folder of packages that it is in.
        out: The folder of the libraries.
        known: What the headers declare, by name.
    """

    site: Path
    out: Path
    known: dict[str, Prototype]


def library(
    soname: str, symbols: dict[str, str | None], place: Installation, below: Iterable[str]
) -> str:
    """Link one library; return a line that describes it."""
    site, out, known = place
    base, work = stem(soname).removeprefix("lib"), out / "generated"
    objects, written = [], set[str]()
    if (source := SOURCES / f"{base}.cpp").exists():
        objects.append(compiled(source, work, site))
        written = {
            line.split()[-1] for line in run("nm", "--defined-only", objects[0]).splitlines()
        }
    rest = sorted(set(symbols) - written)
    code = work / f"{base}_stubs.c"
    code.write_text(PROLOGUE + "\n".join(stub(name, known.get(name)) for name in rest) + "\n")
    objects.append(code.with_suffix(".o"))
    run("gcc", "-w", "-O1", "-fPIC", "-c", code, "-o", objects[-1])
    link = [f"-L{out}", *(f"-l:{name}" for name in below)]
    if versions := {version for version in symbols.values() if version}:
        script = work / f"{base}.map"
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in versions))
        link.append(f"-Wl,--version-script={script}")
    named = (f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN")
    run("g++", "-shared", "-o", out / soname, *objects, *named, *link, "-ldl", "-lpthread")
    unknown = sum(name not in known for name in rest)
    return (
        f"{soname}: {len(written & set(symbols))} written, {len(rest)} generated"
        f"{f', {unknown} without a prototype' * bool(unknown)}"
    )


def cards() -> str:
    """Return nbmem's table of cards as text for the stand-in."""
    lines = []
    for card in CARDS:
        threads, blocks, block_shared = card.multiprocessor
        # CUDA keeps one KiB of a multiprocessor's shared memory for each block, from 8.0 on.
        shared = block_shared + (KIB if card.capability >= (8, 0) else 0)
        sizes = (card.total_bytes, card.nvml_total, card.context_bytes, card.l2_bytes)
        limits = (card.processors, *card.capability, threads, blocks, shared, block_shared)
        handles = (card.cublas_bytes, card.cudnn_bytes, card.nccl_bytes)
        fields = (card.key, card.name, *sizes, *limits, *handles)
        lines.append("\t".join(map(str, fields)) + "\n")
    return "".join(lines)


def architecture(capability: tuple[int, int]) -> int:
    """Return the architecture that a card of this capability runs.

    It is among those that torch has code for.
    """
    own = 10 * capability[0] + capability[1]
    return max((one for one in ARCHITECTURES if one <= own), default=ARCHITECTURES[0])


def table_of(architecture: int) -> str:
    """Return the name of the file with an architecture's kernels."""
    return f"kernels.sm_{architecture}.tsv"


def kernels(site: Path, out: Path, architecture: int) -> None:
    """Write the registers and shared memory of torch's kernels.

    Without cuobjdump, which comes with Triton, the table is empty: the stand-in then takes every
    kernel to need 32 registers.
    """
    tool = next(iter(site.glob("triton/backends/nvidia/bin/cuobjdump")), None)
    resources = r"Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+) LOCAL:(\d+)"
    rows: dict[str, str] = {}
    for path in libraries(site) if tool else ():
        for name in (f"sm_{architecture}", f"sm_{architecture}a"):
            command = [str(tool), "-arch", name, "-res-usage", str(path)]
            # It fails where a library has no code for the architecture.
            listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
            for function, *numbers in re.findall(resources, listing):
                rows[function] = "\t".join((function, *numbers)) + "\n"
    made = out / f"{table_of(architecture)}.{os.getpid()}"
    made.write_text("".join(rows.values()))
    made.replace(out / table_of(architecture))


def build(site: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Compile all libraries for the torch in `site` into a folder.

    Args:
        site: The folder of packages that torch is in.
        out: An empty folder.
        tell: Called with a line on each library.

    Raises:
        BuildError: It cannot be compiled.
    """
    work = out / "generated"
    work.mkdir()
    place, needs = Installation(site, out, prototypes(site)), required_symbols(site)
    for soname, symbols in needs.items():
        if (base := stem(soname)) in WHOLE:
            version = None if base == "libcuda" else soname
            whole = {name: version for name in place.known if re.match(WHOLE[base], name)}
            needs[soname] = whole | symbols
    ranks = {"libcuda": 0, "libcudart": 1}
    order = sorted(needs, key=lambda name: (ranks.get(stem(name), len(ranks)), name))
    below = order[: len(ranks)]  # each links the driver, and all but NVML's the runtime, too
    for number, soname in enumerate(below):
        tell(library(soname, needs[soname], place, below[:number]))

    def rest(soname: str) -> str:
        under = below[:1] if stem(soname) == "libnvidia-ml" else below
        return library(soname, needs[soname], place, under)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        follower = pool.submit(values, site, out)  # the longest
        for line in pool.map(rest, order[len(ranks) :]):
            tell(line)
    if (error := follower.exception()) is not None:  # another torch: its card has no values
        tell(str(error))
    (out / "cards.tsv").write_text(cards())
    (out / PRELOAD).write_text("\n".join(order))
    shutil.rmtree(work)
