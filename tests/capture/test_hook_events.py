"""Hook events are stored as columns and read back."""

from hypothesis import given
from hypothesis import strategies as st

from nbmem.capture.record.hook_events import _KINDS, HookEvent, HookEvents

TURNS = st.builds(
    HookEvent,
    kind=st.sampled_from(_KINDS),
    begins=st.booleans(),
    sample=st.integers(0, 1 << 40),
    key=st.integers(0, 1 << 62),
    closure=st.booleans(),
    thread=st.integers(0, 100),
    updated=st.booleans(),
    computed=st.booleans(),
)


@given(st.lists(TURNS), st.integers(0, 20))
def test_hook_events_are_read_as_they_were_written(told, dropped):
    hook_events = HookEvents()
    for hook_event in told:
        hook_events.append(hook_event)
    assert hook_events.part() == told
    hook_events.drop(dropped)
    assert (len(hook_events), hook_events.part()) == (len(told[dropped:]), told[dropped:])
    assert hook_events.part(1) == told[dropped:][1:]
