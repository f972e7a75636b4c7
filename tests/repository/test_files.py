"""Rules about files: location, length, names, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import imports_torch
from tests.repository.sources import MODULES, ROOT, nodes, relative, tree

FITS = 400
"""Lines that are read in one sitting; a module above them is named here, with its reason."""
LONGER = {
    "tests/oracle/zoo.py": "a list of libraries, a short function for each",
    "nbmem/allocator/caching.py": "the paths of every tensor, and all else that it is asked",
    "nbmem/api/tracing.py": "a trace from its start to its widget: one object, used by its methods",
    "nbmem/report/estimate_results.py": "what estimates answer, for every view",
    "nbmem/report/model.py": "the view-model: one frozen record after another",
    "nbmem/capture/record/recorder.py": "a transaction is read in one piece",
}
A_DOZEN = 12
FULLER = {
    "nbmem/allocator": "the parts of one allocator, each named as torch names it",
    "nbmem/allocator/recordings": "what is learned from a recording, and how it is replayed",
    "nbmem/capture/record": "what one recording gathers, one kind in each",
    "nbmem/capture/tensors": "one source of tensors and their names in each",
    "nbmem/core/files": "the parts of three formats, which share their checks and limits",
    "nbmem/core/session": "one noun of the field in each, which capture writes and reports read",
    "nbmem/estimates/remedies": "one family of remedies in each",
    "nbmem/frontends/cli": "one subcommand in each",
    "nbmem/frontends/notebook": "what a notebook and nbmem exchange, one in each",
    "nbmem/frontends/notebook/commands": "one subcommand in each",
    "nbmem/report/analysis": "one question about a recording in each",
    "nbmem/report/ledger": "passes over one recording's allocations, and the ledger they fill",
    "nbmem/report/tips/rules": "one rule in each",
    "nbmem/views": "one thing that people see in each, and the parts that they share",
    "nbmem/virtual/hardware": "one thing that a machine has in each",
    "tools": "one command in each",
}
"""Folders of more than a dozen modules, each with the reason that makes it one shelf."""
SMALL = 100
REGISTRIES = {
    "nbmem.api.freeing.perform",
    "nbmem.capture.frameworks",
    "nbmem.estimates.remedies",
    "nbmem.frontends.cli",
    "nbmem.frontends.notebook.commands",
    "nbmem.report.tips.rules",
    "nbmem.views.exports",
    "nbmem.virtual.operators.linalg",
    "nbmem.virtual.operators.quantized",
    "nbmem.virtual.operators.recurrent",
    "nbmem.virtual.operators.table",
    "nbmem.virtual.patches.activation",
}
"""Modules that list others, one entry in each file."""
FEW = 32
"""Other modules of at most SMALL lines that one sibling alone imports."""
NINE_IN_TEN = 275
"""Lines that nine modules in ten stay below: a few long ones are let be, a drift is not."""
LONG_FUNCTION = 60
LONGER_FUNCTIONS = {
    "_run": "follows events in one pass: each name is looked up a million times",
    "choose": "CUDA's choice of an attention kernel, in the order of its own rules",
    "cuda_patches": "a table of what is replaced",
    "facts_of": "the passes of a ledger in their order",
    "fit": "the whole of a search, step by step",
    "free": "the allocator's own path, without calls: it runs at each free",
    "malloc": "the allocator's own path, without calls: it runs at each request",
    "storage_patches": "a table of what is replaced",
    "tensor_patches": "a table of what is replaced",
    "timeline": "a figure is described in one piece",
}
OF_ONE_NAME = {
    # The classes that a user writes down are called alike in each framework, as the docs show them.
    "MemoryCallback": {"integrations/lightning.py", "integrations/transformers.py"},
}
"""Classes of the same name."""
TOP_LEVEL = {
    ".ci",
    ".github",  # forms and workflows, where the code host looks for them
    ".gitattributes",
    ".gitignore",
    ".pre-commit-config.yaml",  # where pre-commit looks for it
    "CHANGELOG.md",
    "CITATION.cff",  # the same
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "docs",
    "README.md",
    "SECURITY.md",  # where people and code hosts look for it
    "hatch_build.py",  # hatchling looks for its hook beside pyproject.toml
    "labextension",
    "nbmem",
    "notebooks",
    "pyproject.toml",
    "tests",
    "tools",
}
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:home|root|work|opt|farm|mnt|Users)/(?!x/)\w")
"""An absolute path as a machine has it; `/home/x/` is nobody's, for examples."""
REGISTRY_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs|yarnpkg|anaconda|download\.pytorch)\.\w")


def tracked() -> list[Path]:
    """Return the files that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).exists()]


def test_modules_have_at_most_400_lines_or_a_reason():
    lines = {relative(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name for name, count in lines.items() if count > FITS} <= set(LONGER)
    assert sorted(lines.values())[len(lines) * 9 // 10] <= NINE_IN_TEN


def test_folders_have_at_most_a_dozen_modules_or_a_reason():
    modules = [path for path in MODULES if path.name != "__init__.py"]
    count = Counter(relative(path.parent) for path in modules)
    full = {folder for folder, files in count.items() if files > A_DOZEN}
    assert full == set(FULLER)


def test_functions_fit_on_a_screen():
    long = {
        node.name
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONG_FUNCTION
    }
    assert long <= set(LONGER_FUNCTIONS)


def imported_by() -> dict[str, set[str]]:
    """Map each module of nbmem to those that import it, for types and lazily too."""
    importers: dict[str, set[str]] = {dotted(path): set() for path in MODULES}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    importers.get(whole, importers.get(node.module, set())).add(dotted(path))
    return importers


def dotted(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_small_modules_with_one_importer_are_few():
    importers = imported_by()
    small = [
        dotted(path)
        for path in MODULES
        if path.name != "__init__.py" and len(path.read_text().splitlines()) <= SMALL
    ]
    satellites = [
        name
        for name in small
        if len(importers[name]) == 1
        and (importer := next(iter(importers[name]))) not in REGISTRIES
        and name.rpartition(".")[0] in (importer, importer.rpartition(".")[0])
    ]
    assert len(satellites) <= FEW, satellites


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_in_one_sentence_what_it_is_for(path):
    docstring = ast.get_docstring(nodes(path)[0])
    assert docstring, "no docstring"
    assert docstring.split("\n\n")[0].rstrip().endswith((".", "?"))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_module_is_named_utils_or_the_like(path):
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


def test_a_class_has_a_name_of_its_own():
    homes: dict[str, set[str]] = {}
    for path in ROOT.glob("nbmem/**/*.py"):
        home = str(path.relative_to(ROOT / "nbmem"))
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(home)
    assert {name: where for name, where in homes.items() if len(where) > 1} == OF_ONE_NAME


@pytest.mark.parametrize(
    ("inside", "home", "instead"),
    [
        (
            r"\bcard_ledger\._?followed\b",
            "report/ledger/card_ledger.py",
            "its curves and allocations",
        ),
        (r"\bdevices\.index\(", "nowhere", "CardLedger.bounds(span)"),
        (
            r"\brecorder(\(\))?\.(hook_events|tensor_labels|counter_samples)\b",
            "capture/record/",
            "Recorder.progress()",
        ),
    ],
)
def test_ledgers_and_recorders_are_used_by_their_interface(inside, home, instead):
    found = [
        f"{relative(path)}:{number}"
        for path in ROOT.glob("nbmem/**/*.py")
        if not relative(path).startswith(f"nbmem/{home}")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(inside, line)
    ]
    assert not found, f"ask for {instead}: {found}"


def test_top_level_names_are_the_expected_ones():
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert names <= TOP_LEVEL, "a new top-level name needs a reason; most things have a folder"


def test_nothing_names_a_machine_or_a_registry():
    found = []
    for path in tracked():
        if path == Path(__file__):
            continue  # the patterns themselves
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # recordings and pictures
        found += [
            f"{relative(path)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(lines, 1)
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "skipped"),
    [
        ("import torch", True),
        ("import gc\nfrom torch.nn import functional", True),
        ("import torchvision", False),
        ("def test():\n    import torch", False),
        ('PROGRAM = """\nimport torch\n"""', False),
    ],
)
def test_a_file_of_tests_that_imports_torch_is_skipped_without_it(source, skipped):
    """`pythons` collects all of them where there is no torch."""
    assert imports_torch(source) is skipped


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("open('/home/ann/data.csv')", True),
        ("see /work/data", True),
        ("/home/x/train.py", False),
        ("index-url = https://pypi.example/simple", True),
        ("site-packages/torch/cuda/memory.py", False),
        ("share/opt/name", False),
    ],
)
def test_the_patterns_find_what_they_should(line, named):
    assert bool(MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)) is named
