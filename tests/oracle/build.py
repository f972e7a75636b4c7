"""Build the stand-in's libraries for one installation of torch.

Of each CUDA library that torch links there is a small one with the same soname and symbol
versions. What src/NAME.cpp does not define is generated from the prototypes of the public headers
in the nvidia packages beside torch: a function that answers success, makes up handles and gives
sizes as 0.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from nbmem.core.units import KIB
from nbmem.virtual.cards import CARDS

SOURCES = Path(__file__).parent / "src"
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
NUMBERS = {
    *("int", "size_t", "int64_t", "unsigned", "unsigned int"),
    *("unsigned long long", "long long", "long long int"),
}
HANDLE = re.compile(r"_t$|[a-z]Info$|Comm$|Prog|Subscriber")
DECORATION = "extern|CUSOLVERAPI|CUSPARSEAPI|CUBLASWINAPI|CUFFTAPI|CUDNNWINAPI|CUPTIAPI|__host__"
PROLOGUE = """#include <stddef.h>
#include <stdint.h>
struct id { char bytes[128]; };
static void *made(void) { static char *next = (char *)0x100000; return next += 64; }
"""
ARCHITECTURES = (75, 80, 86, 90, 100, 120)
"""That torch's builds for CUDA 12.8 and 13.0 have code for; src/cudart.cpp chooses among them."""
MADE_FROM = "sources"
"""The file of a finished build that says what it was made from."""
SHORTEST = 10_000
"""Bytes; a shorter library of torch's only names others."""


class Prototype(NamedTuple):
    """A C function: result type, and type and name of each parameter."""

    returns: str
    parameters: tuple[tuple[str, str], ...]


def run(*command: str | Path) -> str:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    ).stdout


def stem(soname: str) -> str:
    """A library's name without its versions."""
    return soname.split(".so", maxsplit=1)[0]


def libraries(site: Path) -> list[Path]:
    """Return the libraries of torch and torchvision that may link CUDA."""
    found = [*site.glob("torch/lib/lib*.so"), *site.glob("torchvision/*.so")]
    return [path for path in found if path.stat().st_size > SHORTEST]


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


def prototypes(site: Path) -> dict[str, Prototype]:
    """Return the functions that the headers declare, by name."""
    found: dict[str, Prototype] = {}
    headers = [*site.glob("nvidia/*/include/*.h"), *site.glob("nvidia/nvshmem/include/*/*.h")]
    for path in headers:
        text = path.read_text("utf-8", "replace")
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
        text = re.sub(r"//[^\n]*|^\s*#[^\n]*(\\\n[^\n]*)*", " ", text, flags=re.MULTILINE)
        text = re.sub(rf"\b({DECORATION})\b", " ", text)
        declared = re.findall(r"([\w][\w\s\*]*?)\b(\w+)\s*\(([^(){};]*)\)\s*;", text)
        for returns, name, listed in declared:
            parameters = tuple(_parameter(one) for one in listed.split(",") if one.strip())
            found.setdefault(name, Prototype(returns.strip(), parameters))
    return found


def _parameter(text: str) -> tuple[str, str]:
    match = re.match(r"(.*?)(\w+)?\s*(\[.*\])?$", text.strip(), re.DOTALL)
    assert match is not None
    kind, name, array = match[1].strip(), match[2] or "", match[3]
    return (f"{kind}*" if array else kind or name, name)


def stub(name: str, prototype: Prototype | None) -> str:
    """Write a C function that succeeds."""
    returns, parameters = prototype or Prototype("int", ())
    taken, body = [], []
    for number, (kind, label) in enumerate(parameters):
        if kind == "void" and len(parameters) == 1:
            break
        if kind.startswith("ncclUniqueId") and "*" not in kind:
            taken.append(f"struct id a{number}")
            continue
        taken.append(f"{kind if kind in ('float', 'double') else 'long'} a{number}")
        target = kind.replace("*", "").strip()
        if kind.count("*") != 1 or "const" in kind or not label:
            continue
        if target in NUMBERS:
            if re.search("size|work|bytes|nnz", label + name, re.IGNORECASE):
                body.append(f"if (a{number}) *({target} *)a{number} = 0;")
        elif re.search("(?i:create)|Init(Rank|All)", name) and HANDLE.search(target):
            body.append(f"if (a{number}) *(void **)a{number} = made();")
    text = "char" in returns and "*" in returns
    body.append('return (long)"error of the stand-in";' if text else "return 0;")
    return f"long {name}({', '.join(taken) or 'void'}) {{ {' '.join(body)} }}"


def compiled(source: Path, work: Path, site: Path, standard: str = "c++17") -> Path:
    """Compile one of our own sources."""
    torchs = [site / "torch/include", site / "torch/include/torch/csrc/api/include"]
    headers = [SOURCES / "compat", SOURCES, *site.glob("nvidia/*/include"), *torchs]
    made = work / f"{source.stem}.o"
    options = (f"-std={standard}", "-O1", "-fPIC", "-w", "-fvisibility=default")
    run("g++", *options, *(f"-I{path}" for path in headers), "-c", source, "-o", made)
    return made


def values(site: Path, out: Path) -> None:
    """Build the library that computes values beside torch's kernels."""
    made = compiled(SOURCES / "values.cpp", out / "generated", site, "c++20")
    torchs = (f"-L{site}/torch/lib", "-ltorch_cpu", "-lc10", "-lc10_cuda")
    run("g++", "-shared", "-o", out / "values.so", made, *torchs, f"-L{out}", "-l:libcuda.so.1")


class Place(NamedTuple):
    """Where torch and the headers are, where the libraries go, and what the headers declare."""

    site: Path
    out: Path
    known: dict[str, Prototype]


def library(soname: str, symbols: dict[str, str | None], place: Place, below: list[str]) -> str:
    """Link one library; return a line that describes it."""
    site, out, known = place
    base, work = stem(soname).removeprefix("lib"), out / "generated"
    objects, written = [], set()
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
        lines.append("\t".join(map(str, (card.key, card.name, *sizes, *limits))) + "\n")
    return "".join(lines)


def table_of(architecture: int) -> str:
    """The file with the kernels of an architecture."""
    return f"kernels.sm_{architecture}.tsv"


def kernels(site: Path, out: Path) -> None:
    """Read registers and shared memory of torch's kernels."""
    tool = next(iter(site.glob("triton/backends/nvidia/bin/cuobjdump")), None)
    if tool is None:
        print("no cuobjdump beside torch: every kernel is taken to need 32 registers")
        return
    resources = r"Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+) LOCAL:(\d+)"

    def read(architecture: int) -> None:
        rows: dict[str, str] = {}
        for path in libraries(site):
            for name in (f"sm_{architecture}", f"sm_{architecture}a"):
                command = [str(tool), "-arch", name, "-res-usage", str(path)]
                # It fails where a library has no code for the architecture.
                said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
                for function, *numbers in re.findall(resources, said):
                    rows[function] = "\t".join((function, *numbers)) + "\n"
        (out / table_of(architecture)).write_text("".join(rows.values()))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, ARCHITECTURES))


def sources() -> str:
    """Return a hash of the libraries' sources and the table of cards."""
    files = [Path(__file__), *(path for path in sorted(SOURCES.rglob("*")) if path.is_file())]
    return hashlib.sha256(
        b"".join([*(path.read_bytes() for path in files), cards().encode()])
    ).hexdigest()


def build(site: Path, out: Path) -> None:
    """Make all libraries for the torch in `site`, and at the end note what from.

    The tables of its kernels, which take most of the time, are made once.
    """
    (out / MADE_FROM).unlink(missing_ok=True)
    shutil.rmtree(out / "generated", ignore_errors=True)
    (out / "generated").mkdir(parents=True)
    place, needs, below = Place(site, out, prototypes(site)), required_symbols(site), list[str]()
    # Each links the driver, and all but NVML's the runtime, too.
    ranks = {"libcuda": 0, "libcudart": 1}
    for soname in sorted(needs, key=lambda name: (ranks.get(stem(name), 2), name)):
        base, symbols = stem(soname), needs[soname]
        if base in WHOLE:
            version = None if base == "libcuda" else soname
            whole = {name: version for name in place.known if re.match(WHOLE[base], name)}
            symbols = whole | symbols
        under = below[:1] if base == "libnvidia-ml" else below[:2]
        print(library(soname, symbols, place, under))
        below.append(soname)
    (out / "cards.tsv").write_text(cards())
    values(site, out)
    if not all((out / table_of(one)).exists() for one in ARCHITECTURES):
        kernels(site, out)
    (out / "preload").write_text(":".join(str(out / name) for name in below))
    (out / MADE_FROM).write_text(sources())
