"""Make one hostile file for each number."""

from __future__ import annotations

import copy
import gzip
import io
import json
import lzma
import pickle
import random
import struct
import warnings
import zipfile

import numpy as np

from tests.fuzz import bases

NASTY = (
    None, True, False, 0, 1, -1, 7, 255, 1 << 31, 1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 63),
    1 << 63, 1 << 64, 1 << 100, 10**400, 0.0, 0.5, -1.5, 1e308, float("nan"), float("inf"), "", "x",
    "=1+1", "\ud800", "\x1b[2J", "a" * 300, "é" * 5_000, "n" * 1_000_000, "alloc", "segment_map",
    "oom", "inactive", b"", b"x" * 20, [], [[]], [1, 2, 3], {}, {"a": 1}, (), (0, 0), (0, 1 << 40),
    (1, 2, 3), [{}] * 3, [None] * 1_000, "0", "NaN", "2.13.0", "forward", "</script><b>", "a\nb\rc",
    "\u202egnp", 64, 4096, 2 << 20, 3, 2, 1 << 20,
)  # fmt: skip


def hostile_file(number: int, only: str | None = None) -> tuple[str, bytes]:
    """Return the kind and bytes of a file, reproducible by its number."""
    draw = random.Random(number)
    kind = only or draw.choice(sorted(KINDS))
    return kind, KINDS[kind](draw)


def _bytes(draw: random.Random) -> bytes:
    """Change some bytes of a valid file, packed or not."""
    name = draw.choice(bases.NAMES)
    if draw.random() < 0.4:
        data = bytearray(bases.zipped(bases.entries(name), draw.choice((0, 8))))
    else:
        data = bytearray(bases.packed(name, draw.randint(2, 5)))
        packing = draw.random()
        if packing < 0.15:
            data = bytearray(gzip.compress(data, 1))
        elif packing < 0.3:
            data = bytearray(lzma.compress(data, preset=0))
    for _ in range(draw.choice((1, 1, 2, 5, 40))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                data[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 2:
                del data[at : at + draw.choice((1, 2, 8, 1000))]
            case 3:
                data[at : at + 4] = b"\xff\xff\xff\x7f"
            case 4:
                begin = draw.randrange(len(data) + 1)
                data[at:at] = data[begin : begin + draw.choice((4, 60, 3000))]
            case _:
                del data[at:]
    return bytes(data)


_OPCODES = [
    b"(", b".", b"0", b"1", b"2", b"N", b"]", b"}", b")", b"a", b"e", b"s", b"u", b"t", b"l", b"d",
    b"\x85", b"\x86", b"\x87", b"\x88", b"\x94", b"\x8f", b"\x90", b"\x91", b"\x93", b"R", b"b",
    b"o", b"\x81", b"\x92", b"Q", b"cos\nsystem\n", b"ibuiltins\neval\n", b"K\x05", b"M\xff\xff",
    b"J\xff\xff\xff\x7f", b"h\x01", b"h\x05", b"j\x10\x00\x00\x00", b"q\x01", b"r\xff\xff\xff\x1d",
    b"r\xff\xff\x0e\x00", b"\x8a\x08" + b"\x7f" * 8, b"\x8a\xff" + b"\x7f" * 255,
    b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"X\x03\x00\x00\x00abc", b"\x8c\x03abc",
    b"\x8d" + b"\xff" * 7 + b"\x00", b"\x8e" + b"\x00\x00\x00\x00\x02\x00\x00\x00",
    b"\x96" + b"\x00\x00\x00\x00\x02\x00\x00\x00", b"B\xff\xff\xff\x7f", b"C\x03abc",
    b"G" + b"\x7f" * 8, b"\x95" + b"\xff" * 8, b"\x80\x04", b"\x82\x01", b"\x83\x01\x00",
    b"I10\n", b"L" + b"9" * 5_000 + b"\n", b"F1e999\n", b"V\\ud800\n", b"S'x'\n", b"g1\n", b"p1\n",
]  # fmt: skip


def _opcodes(draw: random.Random) -> bytes:
    """Make a pickle of random opcodes, alone or inside a snapshot."""
    program = b"".join(draw.choices(_OPCODES, k=draw.choice((2, 8, 40, 200))))
    match draw.randrange(4):
        case 0:
            return b"\x80\x04" + program + b"."
        case 1:
            times = draw.choice((100, 10_000, 200_000))
            same = (draw.choice(_OPCODES) * times)[: 20 << 20]  # the file itself takes memory, too
            return b"\x80\x04" + same + b"e" * draw.randrange(3) + b"."
        case 2:  # pairs of pairs of pairs, as a key of a dict
            pairs = b"".join(b"h%c2\x86q%c" % (n % 250, n % 250 + 1) for n in range(40))
            return b"\x80\x04}N2\x86q\x00" + pairs + b"Ns."
        case _:
            data = bytearray(bases.packed(draw.choice(bases.NAMES), draw.randint(2, 5)))
            at = draw.randrange(2, len(data))
            data[at:at] = program[:40]
            return bytes(data)


def _changed(draw: random.Random, tree: object, times: int) -> None:
    """Replace, remove or repeat values in a tree of lists and dicts."""
    for _ in range(times):
        node, above = tree, None
        while isinstance(node, (list, dict)) and node and (above is None or draw.random() < 0.85):
            keys = list(node) if isinstance(node, dict) else range(len(node))
            above, key = node, draw.choice(keys)
            node = node[key]
        if above is None:
            continue
        match draw.randrange(8):
            case 0:
                del above[key]
            case 1 if isinstance(above, list) and len(above) < 5_000:
                above.extend(copy.deepcopy(above[key : key + 50] * draw.choice((1, 20))))
            case 2 if isinstance(above, list):
                draw.shuffle(above)
            case 3 if isinstance(node, int) and abs(node) < 1 << 62:
                above[key] = node + draw.choice((-1, 1, 512, -512, 1 << 21, -node, node))
            case _:
                above[key] = copy.deepcopy(draw.choice(NASTY))


def _values(draw: random.Random) -> bytes:
    """Make a valid pickle of a snapshot with nonsense values."""
    raw = bases.snapshot(draw.choice(bases.NAMES))
    _changed(draw, raw, draw.choice((1, 1, 2, 6, 60)))
    return pickle.dumps(raw, protocol=draw.randint(2, 5))


def _json(draw: random.Random) -> bytes:
    """Make a session whose JSON has nonsense values."""
    parts = bases.entries(draw.choice(bases.NAMES))
    head = json.loads(parts["session.json"])
    _changed(draw, head, draw.choice((1, 1, 2, 6, 40)))
    text = json.dumps(head, default=lambda odd: odd.hex())
    match draw.randrange(12):
        case 0:
            text = text.replace("0", draw.choice(("NaN", "1e999", "-0", "0.0", "9" * 5_000)), 3)
        case 1:
            text = "[" * draw.choice((10, 5_000, 3_000_000)) + text
        case 2:
            text = '{"format": 2, "spans": [' + "[]," * 3_000_000 + "[]]}"
        case _:
            pass
    parts["session.json"] = text.encode("utf-8", "surrogatepass")
    return bases.zipped(parts)


def _columns(draw: random.Random) -> bytes:
    """Make a session whose columns have invalid references or lengths."""
    parts = bases.entries(draw.choice(bases.NAMES))
    names = [name for name in parts if name.endswith(".npy")]
    for name in draw.sample(names, draw.choice((1, 1, 2, 5))):
        array = np.load(io.BytesIO(parts[name]), allow_pickle=False).copy()
        parts[name] = _nonsense(draw, array)
    if draw.random() < 0.1:
        del parts[draw.choice(names)]
    return bases.zipped(parts)


def _nonsense(draw: random.Random, array: np.ndarray) -> bytes:
    size = len(array)
    match draw.randrange(9):
        case 0 | 1 | 2 if size:
            rows = [draw.randrange(size) for _ in range(draw.choice((1, 3, size)))]
            wild = (0, 1, -1, 5, 99, 1 << 20, 1 << 49, 1 << 62, (1 << 63) - 1, -(1 << 63))
            worth = draw.choice(wild)
            array[rows] = worth if array.dtype == np.int64 else worth & 0xFF
        case 3:
            array = array[: draw.randrange(size + 1)]
        case 4:
            array = np.concatenate([array] * draw.choice((2, 3, 2_000)))
        case 5:
            array = array.astype(draw.choice((np.float64, np.int32, np.uint8, np.int64, "<U8")))
        case 6:
            np.random.default_rng(draw.randrange(1 << 30)).shuffle(array)
        case 7 if array.dtype == np.int64 and size:
            array = np.maximum(array + draw.choice((-1, 1, 512, 1 << 20)), -1)
        case _:
            array = array.reshape(1, -1) if draw.random() < 0.5 else np.array([{}], object)
    out = io.BytesIO()
    np.save(out, array)
    data = out.getvalue()
    if draw.random() < 0.1:
        data = data.replace(b"'shape': (", b"'shape': (9999999999, ", 1)
    return data


def _archive(draw: random.Random) -> bytes:
    """Make a broken archive, false entries or a decompression bomb."""
    name = draw.choice(bases.NAMES)
    parts = bases.entries(name)
    match draw.randrange(7):
        case 0:
            target = io.BytesIO()
            with zipfile.ZipFile(target, "w") as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of names that are there twice
                for entry, data in [*parts.items(), *parts.items()][: draw.randrange(1, 200)]:
                    archive.writestr(zipfile.ZipInfo(entry), data)
            return target.getvalue()
        case 1:
            parts[draw.choice(list(parts))] = bytes(draw.choice((1 << 20, 30 << 20, 60 << 20)))
            return bases.zipped(parts)
        case 2:
            return bases.crowded(name, draw.choice((9_000, 20_000)))
        case 3:
            return bases.zipped(parts, draw.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
        case 4:
            data = bytes(draw.choice((1 << 20, 40 << 20)))
            return draw.choice((gzip.compress, lzma.compress))(
                b"\x80\x04" + data.replace(b"\0", draw.choice((b"]", b"N", b"(", b"\x94", b"\0")))
            )
    return _false_directory_fields(draw, bytearray(bases.zipped(parts, draw.choice((0, 8)))))


def _false_directory_fields(draw: random.Random, data: bytearray) -> bytes:
    """Change fields of the archive's directory and headers."""
    marks = {b"PK\x01\x02": (8, 10, 16, 20, 24, 28, 30, 42), b"PK\x03\x04": (6, 8, 14, 18, 22, 26),
             b"PK\x05\x06": (8, 10, 12, 16, 20)}  # fmt: skip
    for _ in range(draw.choice((1, 2, 4))):
        mark = draw.choice(sorted(marks))
        places = [at for at in range(len(data)) if data.startswith(mark, at)]
        if not places:
            break
        at = draw.choice(places) + draw.choice(marks[mark])
        width = draw.choice("HI")
        worth = draw.choice((0, 1, 8, 9, 99, 0xFFFF, 0xFFFFFFFF, 1 << 20, draw.randrange(1 << 32)))
        if at + 4 <= len(data):
            struct.pack_into(
                f"<{width}", data, at, worth & (0xFFFF if width == "H" else 0xFFFFFFFF)
            )
    return bytes(data)


KINDS = {
    "bytes": _bytes,
    "opcodes": _opcodes,
    "values": _values,
    "json": _json,
    "columns": _columns,
    "archive": _archive,
}
