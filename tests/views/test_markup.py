"""Names in a column: of a long path the beginning and the end are kept."""

import pytest

from nbmem.views.markup import short_path

CACHE = (
    "llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker."
    "model_runner.kv_caches[0]"
)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("net.weight (2, 3) float32", "net.weight (2, 3) float32"),
        (f"{CACHE} (2, 16) int8", "llm...worker.model_runner.kv_caches[0] (2, 16) int8"),
        (f"a.{'b' * 60}.{'c' * 60}", f"a.{'b' * 60}.{'c' * 60}"),  # no end that would fit
        (f"saved by {CACHE}", "saved by llm...worker.model_runner.kv_caches[0]"),
        ("x" * 90, "x" * 90),
        ("cuBLAS workspace", "cuBLAS workspace"),
        ("", ""),
    ],
)
def test_a_long_path_loses_its_middle(name, shown):
    assert short_path(name) == shown
