"""Misspelled magics, subcommands, cards and options in a notebook."""

import pytest

import nbmem

SUGGESTED = [
    ("%memtrac x = 1", "There is no %memtrac. Did you mean `%memtrace`?"),
    ("%%memtrac\nx = 1", "There is no %%memtrac. Did you mean `%%memtrace`?"),
    ("x = 1\n%Memtrace x", "There is no %Memtrace. Did you mean `%memtrace`?"),
    ("%nbmm free", "There is no %nbmm. Did you mean `%nbmem`?"),
    ("%%nbmen fit\nx = 1", "There is no %%nbmen. Did you mean `%%nbmem`?"),
]
ONE_SENTENCE = [
    (
        "%nbmem fre",
        "'fre' is not a subcommand of %nbmem. Did you mean `%nbmem free`? `%nbmem help` lists all.",
    ),
    (
        "%%nbmem ft\nx = 1",
        "'ft' is not a subcommand of %nbmem. Did you mean `%nbmem fit`? `%nbmem help` lists all.",
    ),
    (
        "%nbmem gpu H10",
        (
            "No card is called 'H10'. Did you mean H100 80GB? "
            "`nbmem gpus` (in a notebook `%nbmem gpu`) lists all."
        ),
    ),
    (
        "%nbmem mute cached_memry",
        (
            "'cached_memry' is not a tip. Did you mean `cached_memory`? "
            "Tab after `%nbmem mute` lists all."
        ),
    ),
    (
        "%memtrace --stack x",
        (
            "%memtrace does not know --stack. Did you mean --stacks? "
            "`%memtrace --help` lists what can be given."
        ),
    ),
    (
        "%memtrace --zzz",
        "%memtrace does not know --zzz. `%memtrace --help` lists what can be given.",
    ),
]


@pytest.mark.parametrize(("cell", "sentence"), SUGGESTED)
def test_a_misspelled_magic_is_followed_by_the_right_name(run, cell, sentence):
    done = run(cell)
    assert type(done.error).__name__ == "UsageError"  # IPython's own
    assert done.err.endswith(f"nbmem: {sentence}\n")


@pytest.mark.parametrize(
    "cell", ["%memit x", "%%mprun\nx", "%zzz", "raise ValueError('Cell magic `%%nbmm` not found')"]
)
def test_other_unknown_magics_and_errors_get_no_sentence(run, cell):
    done = run(cell)
    assert done.error is not None
    assert "nbmem: " not in done.err


def test_an_unloaded_extension_says_nothing_of_misspelled_magics(run, shell):
    nbmem.unload_ipython_extension(shell)
    assert "nbmem: " not in run("%memtrac x").err


@pytest.mark.parametrize(("line", "sentence"), ONE_SENTENCE)
def test_a_misspelled_word_is_one_sentence(run, line, sentence):
    done = run(line)
    assert done.success
    assert done.err == f"nbmem: {sentence}\n"
