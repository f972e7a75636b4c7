"""Patched methods, attributes and names, during and after a trace."""

import inspect
import traceback

import pytest

from nbmem.capture.patches.method_patches import AttributePatch, MethodPatch
from nbmem.capture.patches.name_patches import FunctionPatch, NamePatch


class RecordedCalls:
    """Record the calls that a patch reports."""

    def __init__(self, *, fails=False):
        self.events = []
        self.faults = []
        self.fails = fails

    def begins(self, obj, frame):
        self.events.append(f"begins {type(obj).__name__} in {frame.f_code.co_name}")
        if self.fails:
            raise ValueError("a fault of ours")
        return lambda: self.events.append("ends")

    def note(self, part, err):
        self.faults.append((part, type(err).__name__))


@pytest.fixture
def owner():
    class Owner:
        """Methods as torch's classes have them."""

        def call(self, value=1):
            if value == "deep":
                return self.call(2)
            if value == "fail":
                raise KeyError(value)
            return value

    return Owner


@pytest.fixture
def told():
    return RecordedCalls()


@pytest.fixture
def lent(owner, told):
    part = MethodPatch(owner, "call", told.begins, told.note)
    part.apply()
    yield part
    part.revert()


BOTH = ["begins Owner in test_a_call_is_recorded_with_its_end", "ends"]


def test_a_call_is_recorded_with_its_end(owner, lent, told):
    value = owner().call(3)  # pytest looks up in one step what is called in an assert
    assert value == 3
    assert told.events == BOTH


def test_only_the_outermost_of_nested_calls_is_recorded(owner, lent, told):
    value = owner().call("deep")
    assert value == 2
    assert told.events == [
        "begins Owner in test_only_the_outermost_of_nested_calls_is_recorded",
        "ends",
    ]


def test_a_call_that_fails_has_an_end_and_no_frame_of_ours(owner, lent, told):
    with pytest.raises(KeyError) as caught:
        owner().call("fail")
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_a_call_that_fails_has_an_end_and_no_frame_of_ours", "call"]
    assert told.events[1:] == ["ends"]


def test_a_call_through_super_is_recorded_once(owner, lent, told):
    class Mine(owner):
        def call(self, value=1):
            return super().call(value) + 1

    value = Mine().call(3)
    assert value == 4
    assert told.events == ["begins Mine in call", "ends"]


def test_what_is_looked_up_and_not_called_is_the_original(owner, lent, told):
    obj = owner()
    kept, by_name, of_class = obj.call, getattr(obj, "call"), owner.call  # noqa: B009
    assert inspect.ismethod(kept)
    assert kept == by_name
    assert inspect.isfunction(of_class)
    assert [kept(4), by_name(5), of_class(obj, 6)] == [4, 5, 6]
    assert told.events == []


def test_a_call_through_an_imported_name_is_recorded(owner, lent, told):
    script = """
import sys as thing  # `import torch.optim as optim` does the same to `optim = optim.Adam(...)`
thing = Owner()
thing.call()
thing.call(max(1, len("a")))
thing.call(value=[thing.other, 2][1])
kept = thing.call
kept, also = [thing.call, 1]
"""
    owner.other = 1
    exec(compile(script, "script.py", "exec"), {"Owner": owner})
    assert told.events == ["begins Owner in <module>", "ends"] * 3


def test_what_stands_in_the_class_can_be_called_and_asked_as_the_original(owner, lent, told):
    entry = vars(owner)["call"]
    assert entry(owner(), 7) == 7
    assert (entry.__name__, entry.__defaults__) == ("call", (1,))
    assert inspect.signature(entry) == inspect.signature(owner.call)
    assert not hasattr(entry, "nonsense")
    assert inspect.isfunction(entry)


def test_a_replacement_of_the_users_stays(owner, lent, told):
    def mine(self, value=1):
        return "mine"

    owner.call = mine
    lent.revert()
    assert vars(owner)["call"] is mine
    lent.apply()
    assert vars(owner)["call"] is mine


def test_a_patch_put_back_after_revert_is_removed_by_the_next_call(owner, told):
    original = vars(owner)["call"]
    part = MethodPatch(owner, "call", told.begins, told.note)
    part.apply()
    found = vars(owner)["call"]  # as unittest.mock keeps it
    part.revert()
    owner.call = found
    assert owner().call(8) == 8
    assert vars(owner)["call"] is original
    assert told.events == []


def test_a_fault_in_a_callback_costs_only_the_record(owner):
    told = RecordedCalls(fails=True)
    part = MethodPatch(owner, "call", told.begins, told.note)
    part.apply()
    value = owner().call(9)
    assert value == 9
    part.revert()
    assert told.faults == [("the phases from here on", "ValueError")]


def test_an_attribute_is_there_read_written_and_deleted_as_without():
    class Owner:
        def read(self):
            return self.hooks

    read = []
    part = AttributePatch(Owner, "hooks", lambda obj, _: read.append(obj), None, (__file__, "read"))
    before = Owner()
    before.hooks = 1
    part.apply()
    obj = Owner()
    assert not hasattr(obj, "hooks")
    assert not hasattr(Owner, "hooks")
    obj.hooks = 2
    assert (obj.hooks, before.hooks, vars(obj)) == (2, 1, {"hooks": 2})
    assert read == []
    assert obj.read() == 2
    assert read == [obj]
    del obj.hooks
    with pytest.raises(AttributeError, match="'Owner' object has no attribute 'hooks'"):
        obj.read()
    part.revert()
    assert "hooks" not in vars(Owner)
    assert before.hooks == 1


def test_a_name_in_a_module_answers_as_what_it_stands_for():
    class Engine:
        def run(self, value):
            return value + 1

    class Variable:
        engine = Engine()
        other = "other"

    class Module:
        name = Variable

    events = []

    def begins(frame):
        events.append(frame.f_code.co_name)
        return lambda: events.append("ends")

    part = NamePatch(Module, "name", ("engine", "run"), begins, None)
    part.apply()
    assert Module.name.other == "other"
    assert Module.name.engine.run(1) == 2
    assert events == ["test_a_name_in_a_module_answers_as_what_it_stands_for", "ends"]
    part.revert()
    assert Module.name is Variable


def test_a_function_is_recorded_before_it_is_called():
    class Module:
        @staticmethod
        def record(value, *, more=0):
            return value + more

    original, told = Module.record, []
    part = FunctionPatch(
        Module, "record", lambda *args, **kwargs: told.append((args, kwargs)), None
    )
    part.apply()
    assert Module.record(1, more=2) == 3
    part.revert()
    assert Module.record is original
    assert told == [((1,), {"more": 2})]
