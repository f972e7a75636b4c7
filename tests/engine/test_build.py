"""Generated prototypes, the table of cards, and library paths."""

from nbmem.engine import build, cache, launch
from nbmem.engine.build import cards
from nbmem.engine.headers import Prototype, prototypes, stub
from nbmem.virtual.cards import CARDS


def declared(tmp_path, text):
    header = tmp_path / "nvidia/some/include/some.h"
    header.parent.mkdir(parents=True)
    header.write_text(text)
    return prototypes(tmp_path)


def test_prototypes_are_read_through_comments_and_macros(tmp_path):
    found = declared(
        tmp_path,
        "#define X int f(int)\n/* int g(int); */\n"
        "cublasStatus_t CUBLASWINAPI cublasCreate(cublasHandle_t* handle); // int h(int);\n",
    )
    assert found == {"cublasCreate": Prototype("cublasStatus_t", (("cublasHandle_t*", "handle"),))}


def test_a_handle_is_made_and_a_size_is_zero(tmp_path):
    known = declared(
        tmp_path,
        "int xCreate(xHandle_t* handle);\nint xBufferSize(xHandle_t h, size_t* bytes);\n"
        "int xFind(float scale, const int* size);\nconst char* xName(int code);\n",
    )
    bodies = {name: stub(name, prototype) for name, prototype in known.items()}
    assert bodies["xCreate"].endswith("{ if (a0) *(void **)a0 = made(); return 0; }")
    assert bodies["xBufferSize"].endswith("{ if (a1) *(size_t *)a1 = 0; return 0; }")
    assert bodies["xFind"] == "long xFind(float a0, long a1) { return 0; }"
    assert bodies["xName"].endswith('{ return (long)"error of the stand-in"; }')
    assert stub("unknown", None) == "long unknown(void) { return 0; }"


def test_every_card_has_a_line_of_sixteen_fields():
    rows = [line.split("\t") for line in cards().splitlines()]
    assert [row[0] for row in rows] == [card.key for card in CARDS]
    h100 = next(row for row in rows if row[0] == "H100 80GB")
    assert h100[1:] == [
        *("NVIDIA H100 80GB HBM3", str(81_079 << 20), str(81_559 << 20), str(610 << 20)),
        *(str(50 << 20), "132", "9", "0", "2048", "32", str(228 << 10), str(227 << 10)),
        *(str(66 << 20), str(10 << 20), str(564 << 20)),
    ]


def an_installation(folder, **sizes):
    """Lay a CUDA build of torch out, as far as names and sizes."""
    libraries = folder / "torch/lib"
    libraries.mkdir(parents=True)
    (folder / "torch-2.14.1.dist-info").mkdir()
    for name, size in {"c10_cuda": 20_000, **sizes}.items():
        (libraries / f"lib{name}.so").write_bytes(bytes(size))
    return folder


def test_another_source_torch_or_place_is_another_build(tmp_path, monkeypatch):
    site = an_installation(tmp_path / "one", torch_cuda=30_000)
    same = cache.folder(site)
    assert same.name.startswith("torch-2.14.1-")
    assert cache.folder(site) == same
    (site / "torch/lib/libtorch_cuda.so").write_bytes(bytes(30_001))
    other_torch = cache.folder(site)
    other_place = cache.folder(an_installation(tmp_path / "two", torch_cuda=30_000))
    source = tmp_path / "src"
    source.mkdir()
    (source / "cuda.cpp").write_text("int two;")
    for name in cache.MODULES:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(build, "SOURCES", source)
    cache.sources.cache_clear()
    other_source = cache.folder(site)
    cache.sources.cache_clear()
    assert len({same, other_torch, other_place, other_source}) == 4


def test_the_cache_lies_where_other_programs_have_theirs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "nbmem/engine"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    assert cache.root() == tmp_path / "ada/.cache/nbmem/engine"


def test_a_card_runs_the_newest_code_that_it_can():
    found = {card.key: build.architecture(card.capability) for card in CARDS}
    assert (found["T4"], found["A100 80GB"], found["L4"], found["H100 80GB"]) == (75, 80, 86, 90)
    assert build.architecture((7, 0)) == 75  # the oldest that there is code for


def test_the_compiler_of_kernels_finds_its_own_library_alone(tmp_path):
    libraries, built = tmp_path / "nvidia/cu13/lib", tmp_path / "built"
    libraries.mkdir(parents=True)
    built.mkdir()
    for name in ("libnvrtc-builtins.so.13.0", "libcublas.so.13"):
        (libraries / name).write_bytes(b"")
    for _ in range(2):
        assert launch.compilers_own(tmp_path, built) == built / "nvrtc"
    assert [path.name for path in (built / "nvrtc").iterdir()] == ["libnvrtc-builtins.so.13.0"]
