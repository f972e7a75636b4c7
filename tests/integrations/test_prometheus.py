"""Metrics for Prometheus, read with its own parser."""

import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import torch

pytest.importorskip("numpy", reason="a report needs numpy")
parser = pytest.importorskip("prometheus_client.parser", reason="no prometheus_client")

import nbmem
from nbmem.integrations import prometheus

MIB = 1 << 20


def figures(text):
    """By metric and labels."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation.endswith(".")
        for sample in family.samples:
            found[sample.name, *sorted(sample.labels.items())] = int(sample.value)
    return found


def take(mebibytes):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def test_the_text_is_what_torch_counts(gpu):
    take(40)
    kept = take(8)
    found = figures(prometheus.text())
    card = ("card", "0")
    assert found["nbmem_allocated_bytes", card] == torch.cuda.memory_allocated() == 8 * MIB
    assert found["nbmem_peak_allocated_bytes", card] == 40 * MIB
    assert found["nbmem_reserved_bytes", card] == torch.cuda.memory_reserved()
    assert found["nbmem_process_bytes", card] == gpu.process_bytes
    assert found["nbmem_card_bytes", card] == gpu.card.nvml_total
    free = gpu.card.total_bytes - gpu.process_bytes
    assert found["nbmem_free_bytes", card] == free
    assert len(found) == 6
    torch.cuda.reset_peak_memory_stats()
    assert figures(prometheus.text())["nbmem_peak_allocated_bytes", card] == 8 * MIB
    assert kept.numel() == 8 * MIB


def test_a_running_trace_has_categories_that_add_up(gpu):
    model = torch.nn.Linear(512, 512, device="cuda")
    with nbmem.trace(namespace={"model": model}):
        model(torch.empty(4, 512, device="cuda")).sum().backward()
        found = figures(prometheus.text())
    held = {key[2][1]: size for key, size in found.items() if key[0] == "nbmem_category_bytes"}
    assert held["weights"] == held["gradients"] == 4 * (512 * 512 + 512)
    assert sum(held.values()) == found["nbmem_allocated_bytes", ("card", "0")]


def test_the_collector_of_a_registry_says_the_same(gpu):
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(prometheus.Collector())
    kept = take(8)
    assert figures(generate_latest(registry).decode()) == figures(prometheus.text())
    assert kept.numel() == 8 * MIB


def test_a_fault_costs_one_scrape(gpu, monkeypatch, caplog):
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(prometheus.Collector())
    monkeypatch.setattr(prometheus, "_cards", None)
    assert generate_latest(registry) == b""
    assert "nbmem lost this scrape" in caplog.text


def test_a_kernel_serves_it_at_a_port(gpu):
    kept = take(8)
    server = prometheus.serve(port=0)
    place = f"http://127.0.0.1:{server.server_port}"
    try:
        with urllib.request.urlopen(f"{place}/metrics", timeout=20) as answer:
            assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
            assert figures(answer.read().decode()) == figures(prometheus.text())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{place}/", timeout=20)
    finally:
        server.shutdown()
        server.server_close()
    assert kept.numel() == 8 * MIB


def test_a_kernel_without_torch_is_not_given_one():
    code = (
        "import sys; from nbmem.integrations.prometheus import text; print(text().count('TYPE'),"
        " {'torch', 'numpy', 'pynvml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "7 set()\n"
