"""Write labextension/src/messages.ts from the sidebar's messages.

The file is laid out as prettier would, so that formatting the folder changes nothing.

`python3 tools/messages.py` writes it, `--check` tests whether it is up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.frontends.sidebar import messages, requests  # noqa: E402 - this checkout's, whatever is installed
from nbmem.frontends.sidebar.message_codec import PUSHES, REPLIES, REQUESTS, hints, kind_of  # noqa: E402

TARGET = ROOT / "labextension" / "src" / "messages.ts"
CONSTANTS: dict[str, str | int] = {
    "VERSION": messages.VERSION,
    "TARGET": messages.TARGET,
    "RPC_TARGET": requests.RPC_TARGET,
    "LEAST_HZ": messages.LEAST_HZ,
    "USUAL_HZ": messages.USUAL_HZ,
    "MOST_HZ": messages.MOST_HZ,
}
SCALARS = {int: "number", float: "number", str: "string", bool: "boolean"}
CHECKS = {int: "integer", float: "number", str: "text", bool: "truth"}

HEAD = """\
// Written by tools/messages.py from nbmem/live; do not edit. What each message means stands there.

"""
GUARDS = """
/** A value's check; what it lets pass has the declared form. */
type Check = (value: unknown) => boolean;

const MOST_ITEMS = 10_000;
const MOST_TEXT = 100_000;

const text: Check = v => typeof v === 'string' && v.length <= MOST_TEXT;
const truth: Check = v => typeof v === 'boolean';
const number: Check = v => typeof v === 'number' && Number.isFinite(v);
const integer: Check = v => Number.isSafeInteger(v);
const oneOf =
  (...values: string[]): Check =>
  v =>
    typeof v === 'string' && values.includes(v);
const nullable =
  (check: Check): Check =>
  v =>
    v === null || check(v);
const list =
  (check: Check): Check =>
  v =>
    Array.isArray(v) && v.length <= MOST_ITEMS && v.every(item => check(item));
const tuple =
  (...checks: Check[]): Check =>
  v =>
    Array.isArray(v) && v.length === checks.length && checks.every((check, i) => check(v[i]));
const record =
  (fields: [string, Check][]): Check =>
  v =>
    typeof v === 'object' &&
    v !== null &&
    fields.every(
      ([name, check]) =>
        Object.prototype.hasOwnProperty.call(v, name) && check((v as Record<string, unknown>)[name])
    );
"""
READERS = """
/** What became of a message: `foreign` is none of ours, `version` of another nbmem. */
export type Read<T> =
  | { ok: true; message: T }
  | { ok: false; why: 'foreign' | 'invalid' }
  | { ok: false; why: 'version'; version: number };

function read<T>(data: unknown, kinds: Map<string, Check>): Read<T> {
  if (typeof data !== 'object' || data === null || !('nbmem' in data)) {
    return { ok: false, why: 'foreign' };
  }
  const { nbmem, kind } = data as { nbmem: unknown; kind?: unknown };
  if (typeof nbmem !== 'number') {
    return { ok: false, why: 'invalid' };
  }
  if (nbmem !== VERSION) {
    return { ok: false, why: 'version', version: nbmem };
  }
  const check = typeof kind === 'string' ? kinds.get(kind) : undefined;
  return check?.(data) ? { ok: true, message: data as T } : { ok: false, why: 'invalid' };
}

/** Read the data of a `comm_msg` on iopub. */
export function readPush(data: unknown): Read<Push> {
  return read<Push>(data, PUSHES);
}

/** Read an answer on the request comm. */
export function readReply(data: unknown): Read<Reply> {
  return read<Reply>(data, REPLIES);
}
"""


def main() -> int:
    """Write the file, or check it; return 0 unless it is stale."""
    written = typescript()
    if "--check" in sys.argv[1:]:
        fresh = TARGET.exists() and TARGET.read_text() == written
        print("fresh" if fresh else f"stale: run `python3 tools/messages.py` to write {TARGET}")
        return 0 if fresh else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(written)
    return 0


def typescript() -> str:
    """Return the contents of the file."""
    constants = "".join(f"export const {n} = {_literal(v)};\n" for n, v in CONSTANTS.items())
    records = _records()
    unions = "".join(
        _wrapped(f"export type {name} =", [f"I{kind.__name__}" for kind in kinds])
        for name, kinds in (("Push", PUSHES), ("Request", REQUESTS), ("Reply", REPLIES))
    )
    parts = [HEAD, constants, *(_interface(record) for record in records), "\n", unions, GUARDS]
    parts += [_check(record) for record in records if record not in REQUESTS]
    for name, kinds in (("PUSHES", PUSHES), ("REPLIES", REPLIES)):
        rows = ",\n".join(f"  ['{kind_of(k)}', is{k.__name__}]" for k in kinds)
        parts.append(f"\nconst {name} = new Map<string, Check>([\n{rows}\n]);\n")
    return "".join([*parts, READERS])


def _records() -> list[type]:
    """Return every declaration, those first that others are made of."""
    found: list[type] = []

    def visit(kind: Any) -> None:
        if is_dataclass(kind) and isinstance(kind, type):
            for part in hints(kind).values():
                visit(part)
            if kind not in found:
                found.append(kind)
        else:
            for part in get_args(kind):
                visit(part)

    for kind in (*PUSHES, *REQUESTS, *REPLIES):
        visit(kind)
    return found


def _interface(record: type) -> str:
    summary, meanings = _documentation(record)
    lines = ["", _comment(summary, ""), f"export interface I{record.__name__} {{"]
    if record in {*PUSHES, *REQUESTS, *REPLIES}:
        lines += ["  nbmem: typeof VERSION;", f"  kind: '{kind_of(record)}';"]
    for name, kind in hints(record).items():
        if name in meanings:
            lines.append(_comment(meanings[name], "  "))
        lines.append(f"  {name}: {_type(kind)};")
    return "\n".join([*lines, "}", ""])


def _documentation(record: type) -> tuple[str, dict[str, str]]:
    """Return a docstring's summary, and the meaning of each field."""
    written = re.sub(r"\bNone\b", "null", inspect.getdoc(record) or "")
    head, _, attributes = written.partition("\nAttributes:\n")
    meanings = {}
    for match in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
        meanings[match[1]] = " ".join(match[2].split())
    return " ".join(head.split()), meanings


def _comment(sentence: str, indent: str) -> str:
    one = f"{indent}/** {sentence} */"
    if len(one) <= 100:
        return one
    wrapped = textwrap.wrap(sentence, 100 - len(indent) - 3)
    return "\n".join([f"{indent}/**", *(f"{indent} * {line}" for line in wrapped), f"{indent} */"])


def _wrapped(head: str, names: list[str]) -> str:
    union = " | ".join(names)
    for one in (f"{head} {union};\n", f"{head}\n  {union};\n"):
        if max(map(len, one.splitlines())) <= 100:
            return one
    return "\n".join([head, *(f"  | {name}" for name in names)]) + ";\n"


def _type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return " | ".join("null" if a is NoneType else _type(a) for a in arguments)
    if origin is Literal:
        return " | ".join(_literal(a) for a in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        inner = _type(arguments[0])
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if origin is tuple:
        return f"[{', '.join(_type(a) for a in arguments)}]"
    return SCALARS.get(kind) or f"I{kind.__name__}"


def _check(record: type) -> str:
    rows = [f"['{name}', {_guard(kind)}]" for name, kind in hints(record).items()]
    inside = rows[0] if len(rows) == 1 else "\n  " + ",\n  ".join(rows) + "\n"
    return f"\nconst is{record.__name__} = record([{inside}]);\n"


def _guard(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        (other,) = (a for a in arguments if a is not NoneType)
        return f"nullable({_guard(other)})"
    if origin is Literal:
        return f"oneOf({', '.join(_literal(a) for a in arguments)})"
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list({_guard(arguments[0])})"
    if origin is tuple:
        return f"tuple({', '.join(_guard(a) for a in arguments)})"
    return CHECKS.get(kind) or f"is{kind.__name__}"


def _literal(value: str | int) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
