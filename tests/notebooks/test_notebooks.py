"""Notebooks run from top to bottom and are kept without outputs."""

import json
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

from nbmem.virtual.patches.compiled.compiler import PLANNED
from tests import forked_kernels

FOLDER = Path(__file__).parents[2] / "notebooks"
FOR_SITE = FOLDER.parent / "out" / "notebooks"
"""With their outputs, for the site (docs/conf.py)."""
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


SHOWN = {
    "06_memory_that_never_comes_back": (
        "checkpoint['model']['0.weight'] (4096, 2048) float32",
        "the graph of history[...] (512, 4096) float32",
        "nothing was freed, because Out holds 4.0 MiB (Out[10].tensors[0]).",
        "of evaluate() in the traceback of In [13]",
        "checkpoint['model']: 64.0 MiB freed.",
        "history: 48.0 MiB freed.",
        "Out: 4.0 MiB freed.",
        "the traceback: 256.0 MiB freed.",
        "6 of 6 predictions were exact, to the byte.",
    ),
    "07_many_cards": (
        "Rank 0 of 8 peaks highest: ",
        "communication                  6.00 GiB",
        "2 finished, 6 without a file",
        "ended by OutOfMemoryError",
        "The fewest of these cards that train it: 2 (",
        "rank 5 of 8, on NVIDIA H100 80GB HBM3 (cuda:5, virtual)",
    ),
    "08_whoever_else": (
        "  CuPy, cached            5.61 GiB",
        "1. Let CuPy's pool give back 5.61 GiB that it does not use, for this request only",
        "other frameworks' pools: 5.61 GiB freed.",
        "* JAX preallocated",
        '"XLA_PYTHON_CLIENT_PREALLOCATE"',
    ),
    "03_reading_an_oom": (
        "Ran out of memory: 1.95 GiB asked for, 859.0 MiB free, at In [2], line 31 in train",
        "1. Compute the loss in parts of 1,024 positions: about 3.54 GiB less (estimated, then",
        "2. Take a batch of about 16 (lower bound), not 32 (estimated, then tried in the simulator",
        "The failure keeps 12.42 GiB alive: %nbmem free traceback gives it back.",
        "the traceback: 12.42 GiB freed.",
        "A = too large\nB = smaller",
        "An out-of-memory error was caught: 1.95 GiB asked for, 1.54 GiB free, at In [2], line 19",
        "peaked at 9.69 GiB allocated (in backward, step 0)",
    ),
    "09_compiled": (
        "peak allocated    2.52 GiB   1.89 GiB  -640.1 MiB",
        "  activations            1.63 GiB   1.25 GiB  -384.1 MiB",
        "  output gradients      416.0 MiB  160.0 MiB  -256.0 MiB",
    ),
    "10_language_models": (
        "LoRA of llama-3.2-1b takes ",
        "of an NVIDIA GeForce RTX 4090: it fits.",
        "QLoRA of llama-3.2-1b with 2 sequences fits a Tesla T4 up to ",
        "weights, 4-bit",
        "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training",
        "4.00 GiB of keys and values, 32,766 bytes a token",
    ),
}
"""What the outputs of each notebook have to say."""


@pytest.fixture(scope="module")
def kernel_name(tmp_path_factory):
    """Name of the kernels that are forked from a process that has imported torch."""
    folder = tmp_path_factory.mktemp("kernels")
    forks = forked_kernels.install(folder, folder / "forks", dict(os.environ))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        yield forked_kernels.KERNEL
    forks.kill()
    forks.wait()


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request, tmp_path_factory, kernel_name):
    """Run a notebook once."""
    book = nbformat.read(request.param, as_version=4)
    if any("ipyparallel" in cell.source for cell in book.cells):
        pytest.importorskip("ipyparallel", reason="one notebook runs on engines")
    if any("llama" in cell.source for cell in book.cells):
        pytest.importorskip("transformers", reason="one notebook builds language models")
    folder = tmp_path_factory.mktemp("run")
    client = nbclient.NotebookClient(
        book, timeout=300, kernel_name=kernel_name, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    FOR_SITE.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, folder / request.param.name)
    (folder / request.param.name).replace(
        FOR_SITE / request.param.name
    )  # at once: other tests run meanwhile
    return book


def outputs_of(book):
    return [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs]


def test_there_are_notebooks():
    stems = {path.stem for path in NOTEBOOKS}
    assert {"01_quickstart", "02_what_nvidia_smi_shows", *SHOWN} <= stems


def test_a_notebook_shows_what_its_text_promises(executed, request):
    stem = request.node.callspec.params["executed"].stem
    if stem == "09_compiled" and not PLANNED:
        pytest.skip("this release's compiler is not planned")
    texts = [
        o.data["text/plain"] if "data" in o else o.text
        for o in outputs_of(executed)
        if o.output_type != "error"
    ]
    for words in SHOWN.get(stem, ()):
        assert any(words in text for text in texts), words
    if stem == "07_many_cards":
        assert "".join(texts).count("ended by") == 1
        assert sum("peaks highest" in text for text in texts) == 1


def test_every_traced_cell_shows_one_report(executed):
    for cell in executed.cells:
        if cell.source.startswith("%%memtrace"):
            displayed = [o for o in cell.outputs if o.output_type == "display_data"]
            shown = [o for o in displayed if "Ledger" in o.data["text/plain"]]
            assert len(shown) == 1, cell.source
            assert set(shown[0].data) >= {"text/plain", "text/html"}


def test_nothing_is_said_on_stderr(executed):
    streams = [o for o in outputs_of(executed) if o.output_type == "stream"]
    assert [o.text for o in streams if o.name == "stderr"] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_kept(path):
    for cell in json.loads(path.read_text())["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
