"""The process that holds cuDNN: `python -m nbmem.virtual.hardware.cudnn.worker LIBRARY CARD`.

Reads problems, a line of JSON each, and writes an answer or `null` for each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nbmem.virtual.hardware.cudnn.library import LEAST_VERSION, Library, UnsupportedError
from nbmem.virtual.hardware.cudnn.problem import Answer, Problem

if TYPE_CHECKING:
    from nbmem.virtual.hardware.cudnn.library import Descriptor


def answer(library: Library, card: Descriptor, problem: Problem) -> Answer | None:
    """The first configuration that has a plan, as torch takes it."""
    try:
        graph = library.graph(problem)
        for config in library.configurations(graph, card):
            engine = library.engine(config)
            if library.allowed(engine, problem):
                try:
                    return Answer(library.workspace(config, card), library.tiling(config))
                except UnsupportedError:
                    continue
    except UnsupportedError:
        pass
    return None


def main(path: str, facts: str) -> int:
    """Serve until the input ends."""
    library = Library(path)
    if library.version < LEAST_VERSION:
        return 1
    card = library.properties(json.loads(facts))
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        found = answer(library, card, Problem(**asked))
        sys.stdout.write(json.dumps(found and asdict(found)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
