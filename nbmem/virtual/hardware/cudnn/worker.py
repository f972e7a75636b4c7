"""The worker process that loads cuDNN and answers on standard output.

`python -m nbmem.virtual.hardware.cudnn.worker LIBRARY CARD` starts one.

It reads problems from lines of JSON, each with the number of kernels to return, and writes a list
of replies for each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.virtual.hardware.cudnn.cublaslt import patch_cublaslt
from nbmem.virtual.hardware.cudnn.library import LEAST_VERSION, Library, UnsupportedError
from nbmem.virtual.hardware.cudnn.problem import Answer, Problem

if TYPE_CHECKING:
    from nbmem.virtual.hardware.cudnn.library import Descriptor


def answers(library: Library, card: Descriptor, problem: Problem) -> Iterator[Answer]:
    """Yield the configurations that have a plan, in torch's trial order."""
    try:
        graph = library.graph(problem)
        for config in library.configurations(graph, card):
            engine = library.engine(config)
            if library.allowed(engine, problem):
                try:
                    yield Answer(library.workspace(config, card), library.tiling(config))
                except UnsupportedError:
                    continue
    except UnsupportedError:
        return


def main(path: str, facts: str) -> int:
    """Answer each line of standard input until the input ends.

    Returns 1 if cuBLASLt could not be patched or cuDNN is too old, else 0.
    """
    answered = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # cuDNN's log may go to standard output
    if not patch_cublaslt(Path(path)):
        return 1
    library = Library(path)
    if library.version < LEAST_VERSION:
        return 1
    card = library.properties(json.loads(facts))
    for line in sys.stdin:
        asked, wanted = json.loads(line)
        found = islice(answers(library, card, Problem(**asked)), wanted)
        answered.write(json.dumps([asdict(answer) for answer in found]) + "\n")
        answered.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
