"""A real kernel, addressed as a page does."""

from __future__ import annotations

import queue
import time
import uuid
from typing import NamedTuple

from jupyter_client.manager import start_new_kernel

from nbmem.frontends.sidebar.message_codec import decode_push, decode_reply, encode
from nbmem.frontends.sidebar.messages import Sample
from nbmem.frontends.sidebar.requests import RPC_TARGET

LOAD = "%load_ext nbmem\n%nbmem gpu L4\nimport torch, time"
PATIENCE_S = 60


class Push(NamedTuple):
    """A pushed message with its time of receipt."""

    message: object
    received: float


class CellMessages(NamedTuple):
    """Messages on iopub for one cell, up to its end."""

    messages: list
    pushes: list[Push]

    def outputs(self, *kinds):
        return [m["content"] for m in self.messages if m["msg_type"] in kinds]

    def text(self):
        return "".join(content["text"] for content in self.outputs("stream"))

    def pushed(self, kind):
        return [push.message for push in self.pushes if isinstance(push.message, kind)]

    def samples(self):
        return self.pushed(Sample)


class Kernel:
    """A kernel of a test's own."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3", startup_timeout=120)
        self.client.wait_for_ready(timeout=120)
        self.late = []

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def start(self, code, **options):
        """Send a cell; returns the request's id."""
        return self.client.execute(code, **{"stop_on_error": False, **options})

    def run(self, code, **options):
        return self.until_idle(self.start(code, **options))

    def until_idle(self, request):
        """Return everything on iopub until a request is done."""
        ran = CellMessages([], [])
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            ran.messages.append(message)
            data = message["content"].get("data")
            if message["msg_type"] == "comm_msg" and "nbmem" in data and "id" not in data:
                ran.pushes.append(Push(decode_push(data), time.time()))
            if is_idle(message, request):
                return ran

    def until(self, request, kind):
        """Wait for a message of a kind that a request causes."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if (message["msg_type"], message["parent_header"].get("msg_id")) == (kind, request):
                return message

    def silence(self, seconds):
        """Return everything on iopub in that time."""
        messages, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                messages.append(self.client.get_iopub_msg(timeout=left))
            except queue.Empty:
                break
        return messages

    def comms(self):
        """Return the comms that a page would find."""
        self.client.comm_info(target_name="nbmem")
        return self._reply("comm_info_reply")["comms"]

    def _reply(self, kind):
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
            if reply["msg_type"] == kind:
                return reply["content"]

    def subshell(self):
        """Return a subshell's id; None with ipykernel 6."""
        self.client.kernel_info()
        features = self._reply("kernel_info_reply").get("supported_features", [])
        if "kernel subshells" not in features:
            return None
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        return self.client.get_control_msg(timeout=PATIENCE_S)["content"]["subshell_id"]

    def page(self, subshell=None):
        return Page(self, subshell)


class Page:
    """A page's request comm."""

    def __init__(self, kernel, subshell=None):
        self._kernel = kernel
        self._subshell = subshell
        self._comm = uuid.uuid4().hex
        self._post("comm_open", {"target_name": RPC_TARGET, "data": {}})

    def ask(self, request):
        """Send a request; returns the answer."""
        return decode_reply(self.ask_raw(encode(request)))

    def ask_raw(self, data):
        """Send anything; return the reply and keep other messages as late."""
        self._post("comm_msg", {"data": data})
        return self.answer()

    def answer(self):
        while True:
            message = self._kernel.client.get_iopub_msg(timeout=PATIENCE_S)
            content = message["content"]
            if message["msg_type"] == "comm_msg" and content["comm_id"] == self._comm:
                return content["data"]
            self._kernel.late.append(message)

    def _post(self, kind, content):
        session = self._kernel.client.session
        message = session.msg(kind, {"comm_id": self._comm, **content})
        if self._subshell is not None:
            message["header"]["subshell_id"] = self._subshell
        self._kernel.client.shell_channel.send(message)


def is_idle(message, request):
    return (
        message["msg_type"] == "status"
        and message["content"]["execution_state"] == "idle"
        and message["parent_header"].get("msg_id") == request
    )
