"""Which engine is used, and the sentences where one cannot be."""

import platform
import sys

import pytest

from nbmem.core.errors import UsageError
from nbmem.engine import RULES, TORCH, availability, build, cache, choice, launch, process


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A Linux machine with a CUDA build of torch, a compiler and nothing compiled."""
    site = tmp_path / "site"
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch-2.14.1.dist-info").mkdir()
    (site / "torch/lib/libc10_cuda.so").write_bytes(bytes(20_000))
    (site / "nvidia/cu13/include").mkdir(parents=True)
    (site / "nvidia/cu13/include/cuda.h").write_text("")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(availability, "site_packages", lambda: site)
    monkeypatch.setattr(availability, "torch_version", lambda: "2.14.1")
    monkeypatch.setattr(availability, "DRIVER_VERSION", tmp_path / "no driver")
    monkeypatch.setattr(availability.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(process.GPU, raising=False)
    return site


def pretend_built(site):
    folder = cache.folder(site)
    folder.mkdir(parents=True)
    (folder / build.PRELOAD).write_text("libcuda.so.1\nlibcudart.so.13")
    (folder / build.table_of(75)).write_text("")
    (folder / build.VALUES).write_text("")
    return folder


def refusal(engine=TORCH, **more):
    with pytest.raises(UsageError) as found:
        choice.choose(engine, **more)
    return str(found.value)


def test_auto_is_torch_once_it_is_compiled_and_never_compiles(machine):
    assert choice.choose("auto") == RULES
    assert choice.choose("torch") == TORCH
    pretend_built(machine)
    assert choice.choose("auto") == TORCH
    assert choice.choose("rules") == RULES


def test_a_search_of_many_runs_is_left_to_rules_unless_torch_is_named(machine):
    pretend_built(machine)
    assert choice.choose("auto", many=True) == RULES
    assert choice.choose("torch", many=True) == TORCH


def test_auto_takes_rules_for_what_torch_cannot_do(machine):
    pretend_built(machine)
    assert choice.choose("auto", cannot="it has no worlds of ranks") == RULES
    assert refusal(cannot="it has no worlds of ranks") == (
        "Cannot use the engine torch: it has no worlds of ranks. Use --engine rules."
    )


def test_a_build_for_the_cpu_is_refused(machine, monkeypatch):
    monkeypatch.setattr(availability, "site_packages", lambda: None)
    monkeypatch.setattr(availability, "torch_version", lambda: "2.13.0+cpu")
    assert choice.choose("auto") == RULES
    assert refusal() == (
        "Cannot use the engine torch: torch 2.13.0+cpu is no build for CUDA. `pip install torch` "
        "brings one on Linux (about 5 GB). Use --engine rules, which runs everywhere."
    )
    monkeypatch.setattr(availability, "torch_version", lambda: "")
    assert "torch is not installed here" in refusal()


def test_another_system_is_refused(machine, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert "it is for Linux on x86-64, and this is Darwin on arm64" in refusal()
    assert choice.choose("auto") == RULES


def test_a_loaded_driver_is_refused(machine, monkeypatch, tmp_path):
    pretend_built(machine)
    (tmp_path / "version").write_text("NVRM version")
    monkeypatch.setattr(availability, "DRIVER_VERSION", tmp_path / "version")
    assert "NVIDIA's driver is loaded on this machine" in refusal()
    assert choice.choose("auto") == RULES


def test_a_compiler_is_needed_only_where_nothing_is_compiled(machine, monkeypatch):
    monkeypatch.setattr(availability.shutil, "which", lambda name: None if name == "g++" else name)
    assert "g++ cannot be found. Install a C++ compiler with binutils" in refusal()
    pretend_built(machine)
    assert choice.choose("torch") == TORCH


def test_headers_and_a_name_for_the_loader_are_needed(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert "a space or a colon" in refusal()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (machine / "nvidia/cu13/include/cuda.h").unlink()
    assert "the headers of the nvidia packages are not beside torch" in refusal()


def test_an_unknown_engine_is_refused():
    assert refusal("both") == "There is no engine 'both'. Choose one of auto, rules, torch."


def test_a_launch_loads_the_stand_in_first_and_hides_no_card(machine, monkeypatch):
    built = pretend_built(machine)
    monkeypatch.setenv("LD_PRELOAD", "/lib/jemalloc.so")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = launch.environment("2xT4")
    loaded = [f"{built}/libcuda.so.1", f"{built}/libcudart.so.13", "/lib/jemalloc.so"]
    assert found["LD_PRELOAD"].split(":") == loaded
    assert found[process.GPU] == "T4,T4"
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert process.without(found, cache.root())["LD_PRELOAD"] == "/lib/jemalloc.so"
    assert not set(process.without(found, cache.root())) & set(process.VARIABLES)


def test_a_file_of_a_process_that_has_ended_is_removed(tmp_path):
    (tmp_path / "state.999999999").write_bytes(b"")
    mine = launch.state_file(tmp_path)
    mine.write_bytes(b"")
    assert launch.state_file(tmp_path) == mine
    assert list(tmp_path.iterdir()) == [mine]


def test_this_process_is_on_no_stand_in(monkeypatch):
    monkeypatch.setenv(process.ENGINE, TORCH)  # the variable alone makes no card
    assert not process.active()
    assert process.cards() == ()
