"""Exceptions are read without running any of the user's code."""

from nbmem.core.runtime import exceptions, interrupts
from nbmem.core.session import oom


class HostileError(Exception):
    """An exception whose every attribute access fails."""

    def __getattribute__(self, name):
        raise ValueError(name)

    __str__ = __repr__ = __getattribute__


def raised(error, cause=None):
    try:
        raise error from cause  # noqa: TRY301
    except BaseException as err:  # noqa: BLE001 - whatever it is
        return err


def test_no_method_of_an_exception_is_called():
    cause = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    error = raised(HostileError("first", "second"), cause)
    assert exceptions.is_raised(error, Exception)
    assert not exceptions.is_raised(error, KeyboardInterrupt)
    assert exceptions.message_of(error) == "first"
    assert exceptions.linked_exceptions(error) == (cause, None)
    assert exceptions.traceback_of(error).tb_frame.f_code is raised.__code__
    assert oom.oom_in(error) is cause
    assert interrupts.signal_of(error) is None


def test_a_group_leads_to_its_members():
    inner = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    group = ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [inner])])
    assert exceptions.linked_exceptions(group)[2:] == group.exceptions
    assert oom.oom_in(group) is inner


def test_a_message_that_is_no_text_is_empty():
    assert exceptions.message_of(KeyError(3)) == ""
    assert exceptions.message_of(ValueError()) == ""
