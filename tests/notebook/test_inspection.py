"""Shift-Tab on a tensor, a module or an optimizer says its bytes on the card."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("IPython")

import nbmem
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
