"""Bytecode readings on each Python, and their loss where it changed."""

import dis
import functools
import importlib.util
import sys

import pytest

from nbmem.core.runtime import bytecode, self_test

READINGS = {
    "calls_at_once": False,
    "writes_at_once": False,
    "position": None,
    "healthy_answer": None,
    "chooses": False,
    "raises_here": False,
}
"""Each reading with its cautious answer."""
ANSWERS = {
    "writes_at_once": {
        "probe.data.add_(x, alpha=x)": True,
        "probe.data.mul_(1 - x).add_(x)": True,
        "probe.data.copy_(x(probe)) if x is None else None": True,
        "probe.data -= x * 2": True,
        "probe.data @= x": True,
        "probe.data[:] = x": True,
        "probe.data[0] = bool(x)": True,
        "probe.data[..., 1] -= x": True,
        "probe.data[1:2] -= x * 2": True,
        "probe.data.norm()": False,
        "probe.data.clone().add_(x)": False,
        "probe.data.requires_grad_()": False,
        "y = probe.data - x": False,
        "y = probe.data[0]": False,
        "y = probe.data[1:]": False,
        "y = x; y -= probe.data": False,
        "y = x(probe.data)[0]": False,
        "y = {}; y[0] = probe.data": False,
        "y = {}; y[probe.data] -= x": False,
        "x.add_(probe.data)": False,
        "y = probe.data": False,
        "with probe.data: x()": False,
    },
    "calls_at_once": {
        "probe.data()": True,
        "probe.data(set_to_none=x)": True,
        "[probe.data(x, x) for _ in range(2)]": True,
        "(lambda: probe.data(x(), y=x))()": True,
        "import sys as other; other = probe; other.data(x(1), y=x)": True,
        "import sys as other; other = probe; y = other.data, x": False,
        "import sys as other; other = probe; x(other.data)": False,
        "step = probe.data": False,
        "getattr(probe, 'data')(x)": False,
    },
    "position": {"probe.data.\\\n  y(x)": (2, 2, 1, 11), "x = [\n probe.data]": (3, 3, 2, 12)},
    "healthy_answer": {
        "assert probe, f'none of {x}'": True,
        "assert not probe": False,
        "assert probe and x, 'several'": True,
        "if not probe: raise ValueError('not {}'.format('all'))": True,
        "if probe or x: raise KeyError(1)": False,
        "if probe:\n if x: raise KeyError(1)": None,
        "y = 1 if probe else 2": None,
        "while not probe: x()": None,
        "print(probe.data)": None,
    },
    "chooses": {
        "y = max(probe, probe)": True,
        "y = min(probe, probe)": True,
        "if probe: max(1, 2)": False,
        "max(1, 2), bool(probe)": False,
    },
    "raises_here": {
        "raise NotImplementedError": True,
        "try: x()\nexcept TypeError as err: raise ValueError from err": True,
        "x.y": False,
        "x[0]": False,
        "int('a')": False,
        "{}['a']": False,
    },
}
HEADS = ("def run(probe, x):", "if 1:")


@functools.cache
def place(head, source):
    """Run each program once, whatever its instructions are taken for."""
    return self_test._place(head, source)


def reads_correctly(module, name):
    return all(
        getattr(module, name)(*place(head, source)) == answer
        for source, answer in ANSWERS[name].items()
        for head in HEADS
    )


@pytest.fixture
def imported_anew(monkeypatch):
    """Import the module again under the current `dis` tables."""

    def load():
        monkeypatch.setattr(self_test, "_losses", lost := {})
        spec = importlib.util.spec_from_file_location("nbmem_bytecode_anew", bytecode.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, lost

    return load


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("name", "source", "answer"),
    [(name, *one) for name, answers in ANSWERS.items() for one in answers.items()],
)
def test_a_reading_is_right(head, name, source, answer):
    assert getattr(bytecode, name)(*self_test._place(head, source)) == answer


def test_this_python_is_known():
    assert not self_test.losses("recording")
    assert not self_test.losses("virtual card")


def test_references_are_counted_as_this_python_counts_them():
    def counted(pair):
        held, _ = pair
        return sys.getrefcount(held)

    assert counted((object(), object())) == bytecode.OF_A_LOCAL + 1
    assert sys.version_info[:2] != (3, 14) or bytecode.OF_A_LOCAL == 1


def renamed(monkeypatch, name, into):
    number = dis.opmap[name]
    monkeypatch.delitem(dis.opmap, name)
    if into is not None:
        monkeypatch.setitem(dis.opmap, into, number)
    names = [into or f"<{number}>" if n == number else one for n, one in enumerate(dis.opname)]
    monkeypatch.setattr(dis, "opname", names)
    monkeypatch.setattr(dis, "_all_opname", names, raising=False)  # what it shows


@pytest.mark.parametrize("into", ["ANOTHER", None], ids=["renamed", "absent"])
def test_an_instruction_that_is_unknown_costs_only_what_needs_it(monkeypatch, imported_anew, into):
    """Every reading goes on to be right, or is off with a sentence."""
    codes = {place(head, source)[0] for head in HEADS for one in ANSWERS.values() for source in one}
    used = {step.opname for code in codes for step in dis.get_instructions(code)}
    for name in sorted({"RERAISE", *used} & dis.opmap.keys()):
        with monkeypatch.context() as patch:
            renamed(patch, name, into)
            module, lost = imported_anew()
            wrong = {
                one for one in READINGS if one not in lost and not reads_correctly(module, one)
            }
            assert not wrong, name
            assert all(getattr(module, one)(None, 0) == READINGS[one] for one in lost)


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("RERAISE", set()),
        ("STORE_SUBSCR", {"writes_at_once"}),
        ("BINARY_OP", {"writes_at_once"}),
        ("LOAD_ATTR", {"calls_at_once"}),
        ("RAISE_VARARGS", {"healthy_answer", "raises_here"}),
        ("CALL", {"chooses"}),
    ],
)
def test_what_is_lost_is_said(monkeypatch, imported_anew, name, losses):
    renamed(monkeypatch, name, f"NEW_{name}")
    _, lost = imported_anew()
    assert lost.keys() >= losses
    assert bool(lost) is bool(losses)
    assert "position" not in lost
    for use, sentence in lost.values():
        assert sentence in self_test.losses(use)
        assert sentence.startswith("Cannot ")
        assert "this Python {}.{} (it takes ".format(*sys.version_info) in sentence


def test_other_numbers_are_noticed(monkeypatch, imported_anew):
    """An instruction that means something else now, though its name is the same."""
    for name, other in (("STORE_SUBSCR", "STORE_ATTR"), ("BINARY_OP", "IS_OP")):
        with monkeypatch.context() as patch:
            patch.setitem(dis.opmap, name, dis.opmap[other])
            _, lost = imported_anew()
            assert "writes_at_once" in lost, name
            assert "healthy_answer" not in lost


def test_a_stack_effect_that_python_refuses_to_tell(monkeypatch, imported_anew):
    def refuse(*_, **__):
        raise ValueError("invalid opcode or oparg")

    monkeypatch.setattr(dis, "stack_effect", refuse)
    _, lost = imported_anew()
    assert lost.keys() == {"calls_at_once", "writes_at_once"}
    assert "(ValueError: invalid opcode or oparg)" in lost["writes_at_once"][1]


@pytest.mark.parametrize("name", ["calls_at_once", "writes_at_once"])
def test_further_cache_entries_change_nothing(name):
    cache = bytes((dis.opmap["CACHE"], 0)) * 3
    for source, answer in ANSWERS[name].items():
        code, at = place(HEADS[1], source)
        raw = code.co_code
        if raw[at] in bytecode._METHODS:  # more of them behind the look-up
            longer = code.replace(co_code=raw[: at + 2] + cache + raw[at + 2 :])
            assert getattr(bytecode, name)(longer, at) == answer, source


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_readings_are_right_where_every_instruction_is_watched():
    """Whoever watches instructions (coverage, a debugger) replaces them by others."""
    watch = sys.monitoring
    tool = next(number for number in range(6) if watch.get_tool(number) is None)
    watch.use_tool_id(tool, "nbmem's tests")
    seen = []
    watch.register_callback(tool, watch.events.INSTRUCTION, lambda *_: seen.append(1))
    watch.set_events(tool, watch.events.INSTRUCTION | watch.events.CALL | watch.events.LINE)
    try:
        place.cache_clear()
        wrong = [name for name in READINGS if not reads_correctly(bytecode, name)]
    finally:
        watch.set_events(tool, 0)
        watch.free_tool_id(tool)
    assert seen
    assert not wrong
