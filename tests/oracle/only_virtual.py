"""Tests that need what only the virtual card has, with the reason."""

from __future__ import annotations

CHOSEN = "cards are chosen, changed and left"
NO_CARD = "it asks for a machine without a card"
CLOCK = "a clock that stands still; torch's own history runs by the machine's"
TOLD = "the virtual card's planner says of each buffer which line it is from"
WAITED = "its streams end where somebody waits; a card's when they are done"
ONCE = "two processes in one: torch reads the workspaces' size once in each"
ONLY_VIRTUAL = {
    "tests/sidebar/test_host_reader.py::test_a_traced_loop_says_what_the_process_holds": NO_CARD,
    "tests/sidebar/test_host_reader.py::test_a_card_that_torch_could_use_comes_first": NO_CARD,
    "tests/capture/test_recorded_workloads.py": "the recordings are of torch 2.11",
    "tests/capture/test_recorder.py::test_what_nbmem_takes_is_not_in_the_users_time": CLOCK,
    "tests/capture/test_compiled.py::test_the_graphs_nodes_name_what_a_region_saves_and_takes": TOLD,  # noqa: E501
    "tests/capture/test_compiled.py::test_what_backward_computes_again_is_said_to_be": TOLD,
    "tests/frameworks/test_advice.py::test_a_cell_that_was_not_traced_hears_of_it_too": "`active()`",  # noqa: E501
    "tests/cli/test_cli_run.py::test_the_json_says_that_the_card_is_a_virtual_one": "`virtual`",
    "tests/integrations/test_pytest_plugin.py::test_one_imports_torch_and_one_has_no_card": NO_CARD,
    "tests/tips/test_streams.py::test_what_waits_is_told_with_what_would_be_reserved": WAITED,
    "tests/tips/test_streams.py::test_fsdp_without_its_limit_gets_the_line_that_sets_it": WAITED,
    "tests/tips/test_predictions.py::test_a_smaller_workspace_gives_back_what_was_said": ONCE,
    "tests/notebook/test_ranks.py::test_a_notebook_is_one_rank_of_many_until_it_leaves": CHOSEN,
    "tests/notebook/test_gpu.py": CHOSEN,
    "tests/capture/test_accelerators.py": "another device's module is put in torch's place",
}
"""By the beginning of a test's id."""


def reason(nodeid: str) -> str | None:
    """Why a test is not run on the oracle; None if it is."""
    return next((why for start, why in ONLY_VIRTUAL.items() if nodeid.startswith(start)), None)
