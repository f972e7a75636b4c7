"""Run PyTorch's own CUDA tests on the virtual card.

    python -m tests.virtual.torch_tests PYTORCH/test/test_cuda.py [WORD ...]

The file is that of the running torch's release or near it; a WORD chooses tests by a part of their
name. Each test runs in a process of its own, forked, for at most a minute. One that fails has asked
for values where an assertion of its own fails and the card has said before that it knows none, was
refused where the card says in a sentence that it cannot serve, and else failed by the card's fault,
as does each that ends its process or does not end.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SECONDS = 60
CARD = "H100 80GB"
PASSED, SKIPPED, VALUES, REFUSED, FAULT = (
    "passed", "skipped by torch", "needs values", "refused in a sentence", "the card's fault",
)  # fmt: skip
_OUTCOMES = (PASSED, SKIPPED, VALUES, REFUSED, FAULT)
_REFUSAL = re.compile(r"virtual (GPU|card|machine)")
_IN_CHILDREN = f"""
import warnings
warnings.simplefilter("ignore")
from nbmem import virtual
virtual.activate({CARD!r})
"""
"""What processes that a test starts run first: they have the same card."""


def tests_of(path: Path, words: list[str]) -> list[unittest.TestCase]:
    """The file's tests whose names have one of the words; all without words."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = [
        test
        for kind in _cases(module)
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    ]
    return [test for test in found if not words or any(word in test.id() for word in words)]


def _cases(module: Any) -> list[type[unittest.TestCase]]:
    """Yield the test classes of a file."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    return [
        k for k in kinds if issubclass(k, unittest.TestCase) and k.__module__ == module.__name__
    ]


def outcome_of(test: unittest.TestCase) -> tuple[str, str]:
    """Run a test in a process; return its end and last words."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(test, theirs))
    child.start()
    theirs.close()
    reply = None
    with contextlib.suppress(EOFError):
        reply = ours.recv() if ours.poll(SECONDS) else (FAULT, f"no end in {SECONDS} s")
    if reply is None or reply[1].startswith("no end"):
        _end(child)
    child.join()
    if reply is not None:
        return reply
    return FAULT, f"the process ended: {signal.Signals(-child.exitcode or 0).name}"


def _end(child: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _run(test: unittest.TestCase, connection: Connection) -> None:
    os.setpgid(0, 0)
    from nbmem import virtual

    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    if "NBMEM_SHOW" not in os.environ:
        os.dup2(sink, 2)
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()):
        unittest.TestSuite([test]).run(result)  # with the preparations of its class
    card = virtual.active()
    connection.send(_judged(result, unknown=card is not None and bool(card.notes)))
    connection.close()
    os._exit(0)


def _judged(result: unittest.TestResult, *, unknown: bool) -> tuple[str, str]:
    if result.skipped:
        return SKIPPED, result.skipped[0][1]
    broken = [*result.errors, *result.failures]
    if not broken:
        return PASSED, ""
    text = broken[0][1].strip()
    if "NBMEM_SHOW" in os.environ:
        sys.stderr.write(text + "\n")
    words = _last_words(text)
    if unknown and (result.failures or "are not close" in text):
        return VALUES, words
    return (REFUSED if _REFUSAL.search(words) else FAULT), words


def _last_words(text: str) -> str:
    lines = text.splitlines()
    found = [
        n for n, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception|Warning)\b", line)
    ]
    return " ".join(lines[found[-1] if found else -1 :][:3])


def main(path: Path, words: list[str]) -> int:
    """Run the tests; return 1 if the card made any fail."""
    from nbmem import virtual

    warnings.simplefilter("ignore", virtual.NbmemWarning)
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, virtual.activated(CARD):
        Path(folder, "sitecustomize.py").write_text(_IN_CHILDREN)
        os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
        sys.path.insert(0, str(path.parent))
        for test in tests_of(path, words):
            try:
                outcome, why = outcome_of(test)
            except Exception:  # noqa: BLE001 - the next test says more
                outcome, why = FAULT, traceback.format_exc(limit=1)
            counted[outcome] += 1
            if outcome != PASSED:
                name = test.id().partition(".")[2]
                print(f"{outcome:22} {name}: {why[:300]}", flush=True)  # noqa: T201
    for outcome in _OUTCOMES:
        print(f"{counted[outcome]:5} {outcome}")  # noqa: T201
    return int(counted[FAULT] > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
