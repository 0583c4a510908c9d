"""Odd input for commands: numbers, texts, overrides, files, places to write to, and ways to damage a file."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = "the quick brown fox jumps over the lazy dog; " * 40 + "\n"
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0",
    "1" + "0" * 30,
    "-" + "9" * 400,
    "",
    "abc",
    "0x10",
    "1_0",
    "1e-400",
    "½",
    "2.5",
)
TEXTS = (
    "",
    " ",
    "\n",
    "é😀",
    "\ud800",
    "x" * 5000,
    "-",
    "--",
    "[",
    "{",
    "=",
    "a=",
    "=1",
    "a.b.c=1",
    "@",
    "@missing",
    "null",
    "../..",
    "\t1",
)
OVERRIDES = (
    *(
        "training.steps=nan",
        "training.steps=1e400",
        "training.batch_size=" + "1" + "0" * 30,
        "model.width=-1",
        "model={}",
        "data.source=null",
    ),
    *(
        "=",
        "model.blocks.99.mixer=gru",
        "model.blocks.*=1",
        "training.optimizer.lr=inf",
        "sample.temperature=nan",
        "model.width=[",
        "blocks=1",
    ),
    *(
        "data.columns.text=",
        "nothing.known=1",
        "training.precision=fp8",
        "data.columns=[1]",
        "model.blocks=" + "[" * 300,
    ),
)


def deep(opened: str, closed: str) -> bytes:
    return (opened * 20000 + closed * 20000).encode()


FILES: dict[str, bytes] = {
    "empty": b"",
    "blank.txt": b"\n\n \n",
    "latin.txt": "caf\xe9 na\xefve\n".encode("latin-1") * 50,
    "wide.txt": TEXT.encode("utf-16"),
    "nul.txt": b"a\x00b\x00" * 50,
    "cut.txt.gz": gzip.compress(os.urandom(5000))[:900],
    "noise.gz": b"\x1f\x8b" + bytes(range(200)),
    "header.csv": b"review,stars\n",
    "ragged.csv": b'review,stars\n"open,5\na,b,c,d,e\n\n,,\n',
    "twice.csv": b"review,review\na,b\nc,d\n",
    "nan.csv": b"text,price\n" + b"a,nan\nb,inf\nc,1e400\n" * 20,
    "one.csv": b"review,stars\ngood,5\n",
    "latin.csv": b"review,stars\n" + "caf\xe9,5\n".encode("latin-1") * 20,
    "cut.json": b'{"data": [{"title": "a", "paragraphs": [',
    "list.json": b"[]",
    "null.json": b"null",
    "deep.json": deep("[", "]"),
    "huge.json": b'{"version": 1' + b"0" * 6000 + b', "data": []}',
    "text.json": b'"text"',
    "row.jsonl": b'{"text": 1, "label": [1]}\n{"text": null}\n[]\n',
    "cut.yaml": b"model: {width: 16, blocks: [",
    "list.yaml": b"- 1\n- 2\n",
    "null.yaml": b"",
    "tag.yaml": b"model: !!python/object/apply:os.getcwd []\n",
    "deep.yaml": deep("[", "]"),
    "bomb.yaml": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9)) for c in range(98, 108)),
    "twice.yaml": b"name: a\nname: b\nmodel: {}\n",
    "keys.yaml": b"1: 2\n? [a, b]\n: c\nnull: 3\n",
    "date.yaml": b"name: 2020-01-01\nmodel: {width: 1e400}\n",
    "cut.safetensors": b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
    "bad.conll": b"a\nb B-X I-X\n\n\tO\n",
}
PATHS = (
    *(
        "missing",
        "missing/x",
        "text.txt/x",
        "",
        ".",
        "..",
        "/",
        "~",
        "folder",
        "fifo",
        "broken",
        "circle",
        "/dev/null",
        "x" * 300,
        "é😀\n.txt",
    ),
    *FILES,
    *(
        "text.txt",
        "tiny.yaml",
        "lm",
        "hf",
        "stars",
        "lm/spec.yaml",
        "lm/model.safetensors",
        "lm/metrics.jsonl",
        "hf/config.json",
    ),
)
RUNS = (
    "",
    ".",
    "..",
    "missing",
    "text.txt/x",
    "folder",
    "fifo",
    "circle",
    "/dev/null",
    "tiny.yaml",
    "lm",
    "hf",
    "stars",
    "é😀\n",
    "x" * 300,
)
OUTPUTS = (
    "",
    ".",
    "text.txt",
    "text.txt/x",
    "folder",
    "fifo",
    "broken",
    "circle",
    "x" * 300,
    "lm",
    "hf",
    "stars",
    "tiny.yaml",
)
OUTPUTS += ("a/b/c", "/proc/x", "/sys/x", "out.odd", "reviews.csv", "lm/spec.yaml", "full/x")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "null": lambda path: path.write_bytes(b"null"),
    "list": lambda path: path.write_bytes(b"[]"),
    "table": lambda path: path.write_bytes(b"{}"),
    "number": lambda path: path.write_bytes(b"1" + b"0" * 5000),
    "deep": lambda path: path.write_bytes(deep("[", "]")),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "circle": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "odd values": lambda path: path.write_bytes(_odd_values(path.read_bytes())),
}


def _odd_values(content: bytes) -> bytes:
    """JSON in which every number is another kind of thing; other content with a byte turned in its middle."""
    with contextlib.suppress(ValueError):
        return json.dumps(_turned(json.loads(content))).encode()
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :] if content else b"\xff"


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return {"0": [_turned(inner) for inner in value]}
    return "text" if isinstance(value, (int, float)) or value is None else -1
