"""Which tests ask for what only the virtual card has, and why: the one list of them."""

from __future__ import annotations

SEVERAL_RANKS = "a group of several ranks, of which one runs"
NO_CARD = "the process is watched where there is no card"
CLOCK = "a clock that stands still; torch's own history runs by the machine's"
ONCE = "two processes in one: torch reads the workspaces' size once in each"
ONLY_VIRTUAL = {
    "tests/record/test_host.py": NO_CARD,
    "tests/live/test_machine.py::test_a_traced_loop_says_what_the_process_holds": NO_CARD,
    "tests/live/test_machine.py::test_a_card_that_torch_could_use_comes_first": NO_CARD,
    "tests/record/test_collectives.py": SEVERAL_RANKS,
    "tests/record/test_communication.py": SEVERAL_RANKS,
    "tests/record/test_zero.py": SEVERAL_RANKS,
    "tests/record/test_recorded_workloads.py": "the recordings are of torch 2.11",
    "tests/record/test_recorder.py::test_what_nbmem_takes_is_not_in_the_users_time": CLOCK,
    "tests/owners/test_advice.py::test_a_cell_that_was_not_traced_hears_of_it_too": "`active()`",
    "tests/cli/test_cli_run.py::test_the_json_says_that_the_card_is_a_virtual_one": "`virtual`",
    "tests/tips/test_predictions.py::test_a_smaller_workspace_gives_back_what_was_said": ONCE,
    "tests/tips/test_predictions.py::test_a_unit_that_is_the_model_gathers_all_of_it": (
        SEVERAL_RANKS
    ),
    "tests/ipython/test_gpu.py": "cards are chosen, changed and left",
    "tests/record/test_accelerators.py": "another device's module is put in torch's place",
}
"""By the beginning of a test's id."""


def reason(nodeid: str) -> str | None:
    """Why a test is not run on the oracle; None if it is."""
    return next((why for start, why in ONLY_VIRTUAL.items() if nodeid.startswith(start)), None)
