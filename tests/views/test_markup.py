"""Names in a column: of a long path the beginning and the end are kept."""

import pytest

from nbmem.report.model import Finding
from nbmem.views.markup import element, short_path, with_code
from nbmem.views.notes_html import listed
from nbmem.views.tips_html import render_tips_html

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


def test_what_stands_between_backticks_is_code_in_html():
    told = with_code("Free `<b>` or `x[0]`.")
    assert "".join(told) == ("Free <code>&lt;b&gt;</code> or <code>x[0]</code>.")
    assert with_code("cut in `x") == ["cut in `x"]
    assert "".join(listed(["`~` is foreseen", element("b", "a `b`")])).count("<code>") == 1
    finding = Finding(
        rule="cached_memory",
        title="`torch.cuda.empty_cache()` gives back 1.00 GiB",
        evidence="Type `%nbmem free cache`.",
        low=1,
        high=1,
        ground="exact",
        code=None,
        command=None,
    )
    assert "`" not in render_tips_html([finding])
