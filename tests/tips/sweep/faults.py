"""Faults for healthy programs, with the tip that must come first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.tips.sweep.program import Program


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Lines that are added at marks, or put in a marked line's place.

    Attributes:
        rules: The tip that must come first; more than one where either is right.
        at: Mark to the lines that go there; `{model}` and the like are the program's own names.
        instead: Mark to what is put in that line's place.
        before: Lines in front of the program's own.
        bytes: How what the tip promised is compared: `code` runs what it says, `peak` compares
            with the healthy program, None leaves it.
        name: What sets it apart from others of its rule.
    """

    rules: tuple[str, ...]
    at: dict[str, str] | None = None
    instead: dict[str, str] | None = None
    before: str = ""
    bytes: str | None = None
    name: str = ""

    def put_into(self, program: Program) -> str | None:
        """The faulty text; None if the program has no such place or name."""
        at, instead = self.at or {}, self.instead or {}
        if not {*at, *instead} <= program.marks():
            return None
        lines = []
        try:
            for line in program.code.splitlines():
                code, _, mark = line.partition("#: ")
                indent = re.match(r" *", line)[0]
                mark = mark.strip()
                if mark in instead:
                    lines.append(indent + instead[mark].format(**program.names))
                else:
                    lines.append(code if mark else line)
                if mark in at:
                    added = at[mark].format(**program.names).splitlines()
                    lines += [indent + one for one in added]
        except KeyError:
            return None
        return "\n".join([self.before, *lines]) + "\n"


FAULTS = (
    Fault(rules=("no_grad_missing",), instead={"eval": "if True:"}, bytes="peak"),
    Fault(
        # To evaluate without a graph mends both: either may come first.
        rules=("graph_kept", "no_grad_missing"),
        name="a running sum",
        at={"built": "running = 0.0", "out": "running = running + {out}.float().mean()"},
        instead={"eval": "if True:"},
        bytes="code",
    ),
    Fault(
        rules=("graph_kept", "no_grad_missing"),
        name="outputs in a list",
        at={"built": "answers = []", "out": "answers.append({out})"},
        instead={"eval": "if True:"},
        bytes="code",
    ),
    Fault(
        rules=("checkpoint_kept",),
        at={
            "weights": "ckpt = {{'state_dict': {{k: v.clone() for k, v in "
            "{model}.state_dict().items()}}}}\n{model}.load_state_dict(ckpt['state_dict'])"
        },
        bytes="code",
    ),
    Fault(rules=("two_models",), at={"weights": "again = copy.deepcopy({model})"}, bytes="code"),
    Fault(
        rules=("grows_each_step",),
        at={
            "built": "history = []",
            "step": "history.append(torch.zeros(8 << 20, device='cuda'))",
        },
        bytes="code",
    ),
    Fault(
        rules=("reference_cycle",),
        before="import gc; gc.disable()",
        at={
            "end": "class Hook: pass\nhook = Hook(); hook.me = hook\n"
            "hook.cache = torch.zeros(128 << 20, device='cuda')\ndel hook"
        },
        bytes="code",
    ),
    Fault(
        rules=("gradients_kept",),
        at={
            "loss": "{optimizer}.zero_grad()",
            "end": "with torch.no_grad():\n    wide = {model}({batch}.repeat(16, 1))",
        },
        instead={"zero": "pass"},
    ),
    Fault(
        rules=("cached_memory",),
        at={
            "end": "room = torch.cuda.mem_get_info()[0] - (2100 << 20)\n"
            "probe = [torch.zeros(60 << 20, dtype=torch.uint8, device='cuda') "
            "for _ in range(max(90, room // (60 << 20)))]\ndel probe\n"
            "table = torch.zeros(2000 << 20, dtype=torch.uint8, device='cuda')"
        },
        bytes="code",
    ),
)
