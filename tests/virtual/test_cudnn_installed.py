"""Which cuDNN is asked can be read before anything is run."""

import pytest

import nbmem
from nbmem.frontends import cli
from nbmem.virtual.hardware.cudnn import client, installed


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that installs a cuDNN of a release, with or without cuBLASLt."""

    def install(release, *, cublaslt):
        path = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
        (tmp_path / f"nvidia_cudnn_cu13-{release}.dist-info").mkdir()
        for one in [path, *([tmp_path / "nvidia/cu13/lib/libcublasLt.so.13"] if cublaslt else [])]:
            one.parent.mkdir(parents=True)
            one.touch()
        monkeypatch.setattr(client, "library_path", lambda: path)
        return path

    return install


def test_a_library_is_named_with_its_release_and_place(library):
    path = library("9.20.0.48", cublaslt=True)
    expected = f"cuDNN 9.20.0.48 chooses a virtual card's convolution kernels ({path})."
    assert installed.sentence() == expected


def test_a_library_without_cublaslt_chooses_other_kernels(library):
    library("9.20.0.48", cublaslt=False)
    assert installed.sentence().endswith("so kernels that are products are left out.")


def test_an_older_library_is_not_asked(library):
    library("9.1.0.70", cublaslt=True)
    assert installed.sentence().startswith("cuDNN 9.1.0.70 cannot be asked without a card")


def test_the_rules_stand_alone_without_a_library(monkeypatch):
    monkeypatch.setattr(client, "library_path", lambda: None)
    assert installed.sentence().startswith("cuDNN is not installed: nbmem's rules")


def test_the_command_line_says_it(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"nbmem {nbmem.__version__}", installed.sentence()]
