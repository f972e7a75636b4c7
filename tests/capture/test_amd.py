"""AMD cards: readings of amdsmi in NVML's terms."""

import ast
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbmem.capture.devices import amd, nvml
from nbmem.capture.processes import gpu_processes
from nbmem.core.errors import ProbeUnavailableError

MIB = 1 << 20
USED = {
    "amdsmi_init": ["flag"],
    "amdsmi_shut_down": [],
    "amdsmi_get_processor_handles": [],
    "amdsmi_get_gpu_memory_total": ["processor_handle", "mem_type"],
    "amdsmi_get_gpu_memory_usage": ["processor_handle", "mem_type"],
    "amdsmi_get_gpu_process_list": ["processor_handle"],
    "amdsmi_get_gpu_asic_info": ["processor_handle"],
    "amdsmi_get_gpu_driver_info": ["processor_handle"],
    "amdsmi_get_gpu_enumeration_info": ["processor_handle"],
}
"""What nbmem calls, with the parameters of amdsmi 7.0.2."""


class Cards:
    """Fake amdsmi with two cards, in another order than HIP's."""

    class AmdSmiMemoryType:
        VRAM, GTT = 0, 2

    held = (1_000 * MIB, 3_000 * MIB)

    def __init__(self):
        self.running = (os.getpid(), 2_000 * MIB)  # of the process that asks, a forked one, too

    def amdsmi_init(self, flag=None):
        pass

    def amdsmi_shut_down(self):
        pass

    def amdsmi_get_processor_handles(self):
        return [0, 1]

    def amdsmi_get_gpu_memory_total(self, processor_handle, mem_type):
        assert mem_type == self.AmdSmiMemoryType.VRAM
        return 16_368 * MIB

    def amdsmi_get_gpu_memory_usage(self, processor_handle, mem_type):
        assert mem_type == self.AmdSmiMemoryType.VRAM
        return self.held[processor_handle]

    def amdsmi_get_gpu_process_list(self, processor_handle):
        usage = {"gtt_mem": 7 * MIB, "cpu_mem": 9 * MIB, "vram_mem": self.running[1]}
        one = {"name": "python3", "pid": self.running[0], "mem": 0, "memory_usage": usage}
        return [one] if processor_handle else []

    def amdsmi_get_gpu_asic_info(self, processor_handle):
        return {"market_name": f"AMD Instinct MI210 {processor_handle}"}

    def amdsmi_get_gpu_driver_info(self, processor_handle):
        return {"driver_name": "amdgpu", "driver_version": "6.12.12", "driver_date": "N/A"}

    def amdsmi_get_gpu_enumeration_info(self, processor_handle):
        return {
            "hip_id": 1 - processor_handle,
            "hip_uuid": f"GPU-9f444a2fb30adeb{processor_handle}",
        }


@pytest.fixture
def cards(monkeypatch):
    """Install a torch for ROCm, and amdsmi."""
    made_up = Cards()
    rocm = SimpleNamespace(version=SimpleNamespace(hip="7.0.2"))
    monkeypatch.setattr(amd, "loaded_torch", lambda: rocm)
    monkeypatch.setitem(sys.modules, "amdsmi", made_up)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return made_up


def test_a_card_is_found_by_hips_order_and_read(cards):
    reading = nvml.NvmlProbe().read(0, others=True)
    assert (reading.total, reading.used, reading.driver) == (16_368 * MIB, 3_000 * MIB, 0)
    assert reading.process == 2_000 * MIB  # of the card: what it maps of the host's is no part
    assert reading.others == {}
    other = nvml.NvmlProbe().read(1)
    assert (other.used, other.process) == (1_000 * MIB, None)


@pytest.mark.parametrize(
    ("chosen", "handle"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 0),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "1"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"HIP_VISIBLE_DEVICES": "GPU-9f444a2fb30adeb0"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "GPU-9F444A2FB30ADEB1", "HIP_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_visible_devices_choose(cards, monkeypatch, chosen, handle):
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert nvml.NvmlProbe().read(0).used == Cards.held[handle]


def test_a_uuid_that_no_card_has_is_no_other_card(cards, monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-9f444a2fb30adeb7")
    with pytest.raises(ProbeUnavailableError, match="cannot be read"):
        nvml.NvmlProbe().read(0)


def test_an_older_rocm_does_not_tell_hips_order(cards, monkeypatch):
    monkeypatch.delattr(Cards, "amdsmi_get_gpu_enumeration_info")
    assert nvml.NvmlProbe().read(0).used == 1_000 * MIB


def test_cards_and_who_is_on_them(cards):
    assert [card.name[-1] for card in nvml.NvmlProbe().cards()] == ["0", "1"]
    assert nvml.NvmlProbe().cards()[0].driver == "6.12.12"
    first, second = gpu_processes.cards_now(kernels={})
    assert (first.used, first.neighbours) == (1_000 * MIB, ())
    (one,) = second.neighbours
    assert (one.pid, one.used, one.own) == (os.getpid(), 2_000 * MIB, True)


def test_more_than_the_card_has_in_use_is_no_process_figure(cards, monkeypatch):
    monkeypatch.setattr(cards, "running", (os.getpid(), 9_000 * MIB))
    reading = nvml.NvmlProbe().read(0)
    assert reading.process is None
    assert "process" in reading.doubts


@pytest.mark.parametrize("fault", [KeyError("libamd_smi.so"), OSError("x"), AttributeError("y")])
def test_what_cannot_be_imported_is_said(cards, monkeypatch, fault):
    class Broken:
        def find_spec(self, name, *_):
            if name == "amdsmi":
                raise fault

    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ProbeUnavailableError, match=r"amdsmi cannot be imported.*part of ROCm"):
        nvml.NvmlProbe().read(0)


def test_an_exception_of_amdsmis_means_that_it_is_not_there(cards, monkeypatch):
    monkeypatch.setattr(Cards, "amdsmi_get_gpu_memory_usage", lambda *_: 1 / 0)
    with pytest.raises(ProbeUnavailableError, match="cannot be read"):
        nvml.NvmlProbe().read(0)


def test_nothing_changes_for_nvidias_cards(monkeypatch):
    nvidias = SimpleNamespace(version=SimpleNamespace(hip=None, cuda="13.0"))
    for torch in (None, nvidias, SimpleNamespace()):
        monkeypatch.setattr(amd, "loaded_torch", lambda torch=torch: torch)
        assert not amd.is_rocm()


def test_the_functions_are_the_packages_own():
    for name, parameters in USED.items():
        mine = getattr(Cards, name).__code__
        assert list(mine.co_varnames[1 : mine.co_argcount]) == parameters
    spec = importlib.util.find_spec("amdsmi")  # its import wants ROCm's library
    if spec is None or "amdsmi" in sys.modules:
        pytest.skip("amdsmi is not installed")
    source = Path(spec.submodule_search_locations[0], "amdsmi_interface.py").read_text()
    found = {
        one.name: [argument.arg for argument in one.args.args]
        for one in ast.parse(source).body
        if isinstance(one, ast.FunctionDef)
    }
    assert {name: found.get(name) for name in USED} == USED
    keys = ("vram_mem", "pid", "market_name", "driver_version", "hip_id", "hip_uuid")
    assert all(f'"{key}":' in source for key in keys)
