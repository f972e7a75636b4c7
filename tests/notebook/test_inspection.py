"""Shift-Tab on a tensor, a module or an optimizer says its bytes on the card."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("IPython")

from IPython.core.completer import provisionalcompleter

import nbmem
from tests.fake_clock import put_clock
from tests.ipython_shell import shell_on_virtual_card

MADE = """\
net = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False)).cuda()
adam = torch.optim.Adam(net.parameters())
x = torch.ones(4, 1024, device="cuda")
part = x[:1]
host = torch.ones(4)
before = net(x).sum().backward(), adam.step()
class Odd:
    @property
    def weight(self):
        raise SystemExit
odd = Odd()"""


@pytest.fixture(scope="module")
def shell():
    with pytest.MonkeyPatch.context() as patch, shell_on_virtual_card(patch) as shell:
        shell.run_cell(MADE, store_history=True)
        yield shell


def first_line(shell, name):
    return shell.object_inspect_mime(name)["text/plain"].partition("\n")[0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("x", "GPU memory:  16.0 KiB on cuda:0"),
        ("part", "GPU memory:  16.0 KiB on cuda:0"),  # it keeps all of x
        ("net", "GPU memory:  8.0 MiB on cuda:0: weights 4.0 MiB, gradients 4.0 MiB"),
        ("adam", "GPU memory:  8.0 MiB on cuda:0"),  # the counter of steps is on the host
    ],
)
def test_the_first_line_has_the_bytes(shell, name, line):
    assert first_line(shell, name) == line


def types(shell, line):
    """Return the completions of a line with their types."""
    with provisionalcompleter():
        found = [*shell.Completer.completions(line, len(line))]
    return {one.text.lstrip("."): one.type for one in found}


@pytest.mark.parametrize("jedi", [False, True])
def test_a_completion_has_the_bytes_behind_its_type(shell, jedi, monkeypatch):
    if jedi:
        pytest.importorskip("jedi")
    shell.Completer.use_jedi = jedi
    put_clock(monkeypatch, monotonic=lambda: 0.0)  # jedi may take a while
    assert types(shell, "ad")["adam"].endswith("e, 8.0 MiB on cuda:0")
    assert types(shell, "print(net")["net"].endswith("e, 8.0 MiB on cuda:0")
    assert "cuda" not in str(types(shell, "ho")["host"])
    assert "cuda" not in str(types(shell, "odd.we"))


def test_a_fault_of_a_size_is_reported_once_and_leaves_the_completions(shell, monkeypatch, capsys):
    shell.Completer.use_jedi = False
    monkeypatch.setattr("nbmem.api.object_bytes.member_at", None)
    assert {"net", "adam", "x"} <= {*types(shell, "n"), *types(shell, "a"), *types(shell, "x")}
    assert capsys.readouterr().err.count("could not say what a completion holds") == 1


@pytest.mark.parametrize("name", ["host", "odd", "torch", "len", "shell", "MADE"])
def test_any_other_answer_is_ipythons_own(shell, name):
    try:
        theirs = type(shell).object_inspect_mime(shell, name)
    except KeyError:
        with pytest.raises(KeyError):
            shell.object_inspect_mime(name)
        return
    assert shell.object_inspect_mime(name) == theirs


def test_a_part_of_a_module_is_found_and_a_property_is_not_run(shell):
    from nbmem.api.object_bytes import member_at

    weight = shell.user_ns["net"][0].weight
    assert member_at(shell.user_ns, "net.0.weight") is weight
    assert member_at(shell.user_ns, "odd.weight") is None
    assert member_at(shell.user_ns, "nothing.at.all") is None


def test_a_fault_leaves_ipythons_answer(shell, monkeypatch, capsys):
    from nbmem.api import object_bytes

    monkeypatch.setattr(object_bytes, "is_tensor", lambda _: 1 / 0)
    assert not first_line(shell, "x").startswith("GPU memory")
    assert "could not say what this holds on the card" in capsys.readouterr().err


def test_nothing_of_it_stays_after_unloading(shell):
    nbmem.unload_ipython_extension(shell)
    try:
        assert "object_inspect_mime" not in vars(shell)
        assert not first_line(shell, "x").startswith("GPU memory")
    finally:
        nbmem.load_ipython_extension(shell)
