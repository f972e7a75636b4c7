"""Generate C functions from the prototypes of NVIDIA's public headers.

The headers are those of the nvidia packages beside torch. They are read while the stand-in is
compiled; nothing of them is kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

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


class Prototype(NamedTuple):
    """A C function: result type, and type and name of each parameter."""

    returns: str
    parameters: tuple[tuple[str, str], ...]


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
    assert match is not None  # noqa: S101 - it matches any text
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
