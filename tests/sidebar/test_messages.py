"""Messages are encoded and decoded unchanged; others are refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbmem.core.errors import UsageError
from nbmem.frontends.sidebar import message_codec
from nbmem.frontends.sidebar.message_codec import (
    decode_push,
    decode_reply,
    decode_request,
    encode,
    kind_of,
)
from nbmem.frontends.sidebar.messages import Note
from tests.sidebar import examples

ROOT = Path(__file__).parents[2]
HOSTILE = json.loads((examples.GOLDEN / "hostile.json").read_text())
MESSAGES = [
    *((message, decode_push) for message in examples.PUSHES),
    *((message, decode_request) for message in examples.REQUESTS),
    *((message, decode_reply) for message in examples.REPLIES),
]


def _golden(message):
    return json.loads((examples.GOLDEN / f"{kind_of(type(message))}.json").read_text())


@pytest.mark.parametrize(("message", "decode"), MESSAGES, ids=lambda v: type(v).__name__)
def test_a_message_is_written_as_its_golden_file_and_read_back(message, decode):
    assert json.loads(json.dumps(encode(message), allow_nan=False)) == _golden(message), (
        "if this is meant: python -m tests.sidebar.examples writes the golden files anew"
    )
    assert decode(_golden(message)) == message


def test_every_kind_has_an_example():
    shown = {type(message) for message, _ in MESSAGES}
    assert shown == {*message_codec.PUSHES, *message_codec.REQUESTS, *message_codec.REPLIES}


def test_sorting_the_keys_on_saving_changes_nothing():
    kept = json.loads(json.dumps(_golden(examples.REPORT), sort_keys=True))
    assert decode_push(kept).at_peak == examples.REPORT.at_peak


@pytest.mark.parametrize(("_why", "data"), HOSTILE)
def test_what_is_no_message_is_refused_with_a_sentence(_why, data):
    for decode in (decode_push, decode_reply, decode_request):
        with pytest.raises(UsageError, match=r"\.$"):
            decode(data)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"id": 7}, "RunCommand.id must be a text of at most 200 characters, not 7."),
        ({"name": "f" * 201}, "RunCommand.name must be a text of at most 200 characters"),
        ({"arguments": "cache"}, "RunCommand.arguments must be a list, not 'cache'."),
        ({"arguments": [None]}, "RunCommand.arguments[0] must be a text"),
        ({"arguments": ["x"] * 1001}, "RunCommand.arguments must be a list"),
        ({"code": "import os"}, "RunCommand has no field 'code'."),
        ({"nbmem": 2}, "of version 2, and nbmem here speaks version 1."),
        ({"nbmem": True}, "of version True"),
        ({"kind": "sample"}, "'sample' is no message that is taken here. There are: get_state,"),
    ],
)
def test_a_request_is_checked_to_its_last_field(change, sentence):
    with pytest.raises(UsageError) as caught:
        decode_request(_golden(examples.REQUESTS[2]) | change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("hz", [True, "4", None, float("nan"), float("inf"), [4]])
def test_a_number_is_a_number(hz):
    with pytest.raises(UsageError, match=r"SetRate\.hz must be a number"):
        decode_request({"nbmem": 1, "kind": "set_rate", "id": "1", "hz": hz})


def test_a_reader_passes_over_what_a_newer_nbmem_adds():
    later = {"nbmem": 1, "kind": "note", "t_ms": 1, "sentence": "x", "added": {"later": 1}}
    assert decode_push(later) == Note(t_ms=1.0, sentence="x")


def test_the_typescript_is_fresh():
    command = [sys.executable, str(ROOT / "tools" / "messages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_messages_need_neither_torch_nor_numpy():
    code = (
        "import sys, nbmem.frontends.sidebar.message_codec; "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
