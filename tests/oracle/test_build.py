"""Generated prototypes, the table of cards, and library paths."""

from nbmem.virtual.cards import CARDS
from tests.oracle import build, launch
from tests.oracle.build import Prototype, cards, prototypes, sources, stub


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


def test_every_card_has_a_line_of_thirteen_fields():
    rows = [line.split("\t") for line in cards().splitlines()]
    assert [row[0] for row in rows] == [card.key for card in CARDS]
    h100 = next(row for row in rows if row[0] == "H100 80GB")
    assert h100[1:] == [
        *("NVIDIA H100 80GB HBM3", str(81_079 << 20), str(81_559 << 20), str(610 << 20)),
        *(str(50 << 20), "132", "9", "0", "2048", "32", str(228 << 10), str(227 << 10)),
    ]


def test_a_change_in_a_source_is_another_build(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "cuda.cpp").write_text("int one;")
    before = sources()
    assert before == sources()
    (tmp_path / "cuda.cpp").write_text("int two;")
    assert before != sources()


def test_the_compiler_of_kernels_finds_its_own_library_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    libraries, built = tmp_path / "nvidia/cu13/lib", tmp_path / "built"
    libraries.mkdir(parents=True)
    built.mkdir()
    for name in ("libnvrtc-builtins.so.13.0", "libcublas.so.13"):
        (libraries / name).write_bytes(b"")
    for _ in range(2):
        assert launch.compilers_own(tmp_path, built) == f"{built / 'nvrtc'}:/elsewhere"
    assert [path.name for path in (built / "nvrtc").iterdir()] == ["libnvrtc-builtins.so.13.0"]
