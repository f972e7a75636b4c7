"""Kernel rules that an installed package brings."""

import importlib
import sys
import textwrap
import warnings

import pytest
import torch

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.virtual import packages
from nbmem.virtual.kernel_rules import KernelRules

IMPORT = "from nbmem.virtual.kernel_rules import KernelRules"
RIGHT = """
    import torch
    from nbmem.virtual.kernel_rules import KernelRules

    def attend(x, scale):
        scratch = torch.empty(2, *x.size(), device=x.device)
        if scale < 0:
            raise ValueError("scale must be positive")
        if scale == 7:
            return x.no_such_attribute
        return torch.empty_like(x)

    def forward(x):
        return [torch.empty_like(x), x.new_empty(1)]

    RULES = KernelRules(
        operators={"nbmem_mylib::attend": attend},
        modules={"nbmem_mylib_cuda": {"forward": forward}},
        replaced={"nbmem_mylib.native": {"lib": lambda lib: ("instead of", lib)}},
    )
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package: its module of rules, and its metadata."""

    def install(source, value="nbmem_mylib.memory:RULES"):
        package = tmp_path / "nbmem_mylib"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "native.py").write_text("lib = 'compiled'\n")
        (package / "memory.py").write_text(textwrap.dedent(source))
        metadata = tmp_path / "nbmem_mylib-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: nbmem-mylib\nVersion: 1.2")
        (metadata / "entry_points.txt").write_text(f"[nbmem.virtual]\nmylib = {value}\n")
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        packages.all_rules.cache_clear()

    yield install
    packages.all_rules.cache_clear()
    for name in [name for name in sys.modules if name.startswith("nbmem_mylib")]:
        del sys.modules[name]


@pytest.fixture
def attend():
    library = torch.library.Library("nbmem_mylib", "FRAGMENT")
    library.define("attend(Tensor x, float scale) -> Tensor")
    yield torch.ops.nbmem_mylib.attend
    library._destroy()


def test_a_package_says_what_its_operator_takes(installed, attend):
    installed(RIGHT)
    with virtual.activated("H100"):
        x = torch.ones(1024, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        kept = attend(x, 1.0)
        assert torch.cuda.memory_allocated() == 8192
        assert torch.cuda.max_memory_allocated() == 16384
        del kept
        with pytest.raises(ValueError, match="scale must be positive"):
            attend(x, -1.0)
        with pytest.raises(UsageError) as failed:
            attend(x, 7.0)
        assert str(failed.value) == (
            "The rule for nbmem_mylib::attend that nbmem-mylib 1.2 brings for virtual GPUs failed "
            "(AttributeError: 'Tensor' object has no attribute 'no_such_attribute'). Another "
            "version of it may have it right; without the rule the operator's fake implementation "
            "would answer."
        )


def test_a_compiled_module_that_is_not_there_is_stood_in_for(installed):
    installed(RIGHT)
    with virtual.activated("H100"):
        module = importlib.import_module("nbmem_mylib_cuda")
        first, second = module.forward(torch.ones(4, device="cuda"))
        assert (first.size(), second.size()) == ((4,), (1,))
        with pytest.raises(RuntimeError, match=r"nbmem_mylib_cuda\.forward takes tensors on a GPU"):
            module.forward(torch.ones(4))
    assert "nbmem_mylib_cuda" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nbmem_mylib_cuda")


@pytest.mark.parametrize("earlier", [True, False])
def test_a_name_in_a_module_is_replaced_and_put_back(installed, earlier):
    installed(RIGHT)
    if earlier:
        importlib.import_module("nbmem_mylib.native")
    with virtual.activated("H100"):
        native = importlib.import_module("nbmem_mylib.native")
        assert native.lib == ("instead of", "compiled")
    assert native.lib == "compiled"
    assert not [finder for finder in sys.meta_path if "nbmem" in type(finder).__module__]


@pytest.mark.parametrize(
    ("source", "value", "why"),
    [
        ("import no_such_module", "nbmem_mylib.memory:RULES", "ModuleNotFoundError: No module"),
        ("raise SystemExit(3)", "nbmem_mylib.memory:RULES", "SystemExit: 3"),
        ("", "nbmem_mylib.memory:RULES", "AttributeError: module 'nbmem_mylib.memory' has no"),
        ("RULES = {}", "nbmem_mylib.memory:RULES", "TypeError: nbmem_mylib.memory:RULES is a dict"),
        (
            f"{IMPORT}\nRULES = KernelRules",
            "nbmem_mylib.memory:RULES",
            "TypeError: nbmem_mylib.memory:RULES is the class KernelRules",
        ),
        (
            f"{IMPORT}\nRULES = KernelRules(operators={{'attend': print}})",
            "nbmem_mylib.memory:RULES",
            "TypeError: operators are named \"library::operator\", not 'attend'",
        ),
        (
            f"{IMPORT}\nRULES = KernelRules(modules={{'m': {{'f': 3}}}})",
            "nbmem_mylib.memory:RULES",
            "TypeError: m.f is 3, which cannot be called",
        ),
    ],
)
def test_rules_that_cannot_be_used_cost_one_sentence(installed, source, value, why):
    installed(source, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("H100") as gpu:
            (note,) = [note for note in gpu.notes if "nbmem-mylib" in note]
            assert note.startswith(
                "The rules that nbmem-mylib 1.2 brings for virtual GPUs cannot be used"
            )
            assert why in note
            assert torch.ones(4, device="cuda").size() == (4,)


def test_a_replacement_that_fails_costs_one_sentence(installed):
    installed("""
        from nbmem.virtual.kernel_rules import KernelRules
        RULES = KernelRules(replaced={"nbmem_mylib.native": {"lib": lambda lib: 1 / 0}})
    """)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virtual.NbmemWarning)
        with virtual.activated("H100") as gpu:
            assert importlib.import_module("nbmem_mylib.native").lib == "compiled"
            assert [note for note in gpu.notes if "ZeroDivisionError" in note]


def test_rules_are_checked_when_they_are_made():
    assert KernelRules().operators == {}
    with pytest.raises(TypeError, match="which cannot be called"):
        KernelRules(operators={"mylib::op": None})
