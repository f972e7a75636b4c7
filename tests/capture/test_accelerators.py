"""Accelerators without a history: counters beside observed tensors.

A fake has the functions of torch's modules; a test compares their signatures with the real ones.
"""

import inspect
from types import SimpleNamespace

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem.api import device_selection as choosing
from nbmem.capture.devices import DeviceReading, accelerators
from nbmem.capture.devices.host import Host
from nbmem.core.session.categories import Category
from nbmem.views.text import render_text

C = Category
MIB, GIB = 1 << 20, 1 << 30


def xpu(*, up=True):
    def memory_stats_as_nested_dict(device=None):
        assert device == 0
        return {
            "allocated_bytes": {"all": {"current": 3 * MIB}},
            "reserved_bytes": {"all": {"current": 20 * MIB}},
        }

    def mem_get_info(device=None):
        assert device == 0
        return 12 * GIB, 16 * GIB

    def get_device_properties(device=None):
        assert device == 0
        return SimpleNamespace(name="Intel(R) Arc(TM) A770", total_memory=16 * GIB)

    def is_initialized():
        return up

    def device_count():
        return 1

    return SimpleNamespace(**locals())


def mps(*, allocated=3 * MIB):
    def current_allocated_memory():
        return allocated

    def driver_allocated_memory():
        return 20 * MIB

    def recommended_max_memory():
        return 10 * GIB

    def is_available():
        return True

    return SimpleNamespace(**locals())


def accelerator():
    def memory_stats(device_index=None, /):
        assert device_index == 0
        return {"allocated_bytes.all.current": 3 * MIB, "reserved_bytes.all.current": 20 * MIB}

    def get_memory_info(device_index=None, /):
        assert device_index == 0
        return 50 * GIB, 64 * GIB

    def current_accelerator(check_available=False):  # noqa: FBT002 - torch's signature
        return SimpleNamespace(type="npu", index=None)

    def device_count():
        return 1

    return SimpleNamespace(**locals())


def fake(**parts):
    border = SimpleNamespace(_accelerator_isAllocatorInitialized=lambda: True)
    return SimpleNamespace(__version__="2.13.0", _C=border, **parts)


CASES = {
    "xpu": (fake(xpu=xpu()), DeviceReading(3 * MIB, 20 * MIB, 4 * GIB), 16 * GIB),
    "mps": (fake(mps=mps()), DeviceReading(3 * MIB, None, 20 * MIB, 20 * MIB), 10 * GIB),
    "npu": (fake(accelerator=accelerator()), DeviceReading(3 * MIB, 20 * MIB, 14 * GIB), 64 * GIB),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_is_found_and_read(kind):
    made_up, reading, total = CASES[kind]
    device = accelerators.accelerator_in_use(made_up)
    assert device.kind == kind
    assert device.count(made_up) == 1
    assert device.read(made_up, 0, whole=True) == reading
    info = device.info(made_up, 0)
    assert (info.kind, info.total_bytes, info.keeps_history) == (kind, total, False)


@pytest.mark.parametrize("part", ["xpu", "mps", "accelerator"])
def test_the_fakes_have_torchs_own_signatures(part):
    real = getattr(torch, part, None)
    if part == "accelerator" and not hasattr(real, "get_memory_info"):
        pytest.skip("torch 2.9 brought it")
    made_up = {"xpu": xpu, "mps": mps, "accelerator": accelerator}[part]()
    for name, function in vars(made_up).items():
        if inspect.isfunction(function):
            known = inspect.signature(getattr(real, name)).parameters.values()
            mine = inspect.signature(function).parameters.values()
            assert [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in known], name


def test_none_is_brought_up_by_asking():
    down = fake(xpu=xpu(up=False), mps=mps(allocated=0))
    assert accelerators.accelerator_in_use(down) is None
    assert accelerators.accelerator_in_use(torch) is None


class Counted(Host):
    """Tensors of the CPU, with the counters of a caching allocator."""

    held = (0, 0)

    def read(self, _torch, _index, *, whole):
        return DeviceReading(*self.held, 8 * GIB if whole else None)

    def info(self, torch, index):
        return accelerators.Xpu().info(fake(xpu=xpu()), index)


def test_counters_and_objects_make_one_ledger(monkeypatch):
    device = Counted()
    monkeypatch.setattr(
        "nbmem.capture.record.storage_registry_log.accelerator_in_use", lambda _torch: device
    )
    with nbmem.trace("counted", namespace=(names := {})) as t:
        names["kept"] = kept = torch.ones(MIB)
        device.held = (5 * MIB, 20 * MIB)
    report = t.report()
    end = report.ledger_at_end
    end.check()
    assert report.device.name == "Intel(R) Arc(TM) A770"
    assert end[C.USER_TENSORS] == kept.nbytes == 4 * MIB
    assert end[C.UNKNOWN] == MIB
    assert end[C.CACHED_RELEASABLE] == 15 * MIB
    assert (end.allocated, end.reserved, end.total_bytes) == (5 * MIB, 20 * MIB, 16 * GIB)
    assert "reserved" in render_text(report)
    assert any("an Intel GPU" in note or "the host" in note for note in report.notes)


def test_a_driver_that_does_not_tell_what_is_in_use_costs_that_figure_alone(monkeypatch):
    def refused(_device):
        raise RuntimeError("The device doesn't support querying the available free memory.")

    intel = accelerators.Xpu()
    made_up = SimpleNamespace(**{**vars(xpu()), "mem_get_info": refused})

    class Integrated(Counted):
        missing = property(lambda _: intel.missing)

        def read(self, _torch, index, *, whole):
            return intel.read(fake(xpu=made_up), index, whole=whole)

    monkeypatch.setattr(
        "nbmem.capture.record.storage_registry_log.accelerator_in_use", lambda _torch: Integrated()
    )
    monkeypatch.setattr(
        "nbmem.capture.record.storage_registry_log.device_without_history",
        lambda _torch: Integrated(),
    )
    with nbmem.trace("integrated", namespace=(names := {})) as t:
        names["kept"] = torch.ones(1 << 16)
    report = t.report()
    end = report.ledger_at_end
    end.check()
    assert (end[C.USER_TENSORS], end.reserved) == (1 << 18, 20 * MIB)
    assert end[C.FREE] == 16 * GIB - 20 * MIB
    assert any(
        note.endswith("what other programs hold is counted as free.") for note in report.notes
    )


def test_a_card_of_amds_is_a_real_one(monkeypatch):
    rocm = SimpleNamespace(
        version=SimpleNamespace(cuda=None, hip="6.4"),
        cuda=SimpleNamespace(is_available=lambda: True),
    )
    monkeypatch.setattr(choosing, "import_torch", lambda: rocm)
    assert choosing.real_card() == "GPU"
