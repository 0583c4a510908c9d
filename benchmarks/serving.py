"""Benchmark of the server under load, with clients that misbehave among those that do not.

    python benchmarks/serving.py --minutes 5 --clients 32
    python benchmarks/serving.py --minutes 2 --clients 16 --pictures

``qkv serve`` runs in a process of its own with five models of random weights: rotary attention, a window, linear
attention, a GRU and an encoder–decoder. Each client asks in turn, for texts of 8 to 64 tokens, streamed or whole. One
request in eight is faulty: a connection that is dropped, a reader who waits, a wrong key, a body that is too large, not
UTF-8 or has a million stop strings. An answer is lost if its status, its number of tokens or its end is not the
expected one. The memory is that of the server's process, after the first fifth of the time and at the end.

``--pictures``: a sixth model, trained for two steps, reads pictures. Half of the requests are chats about one of eight
pictures of 64 × 64 pixels, and pictures are among what is faulty: one that claims 60,000 × 60,000 pixels, one of 48
million, a truncated one, an address, and a file of the system.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from PIL import Image

import qkv
from peer_process import Died
from qkv.data.records.images.pictures import as_uri
from qkv.report.table import print_table
from qkv.spec import tokenizers
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.tokenizers.train import train
from side_by_side import parser, say_where

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 20
BRANCHES = {
    "rotary": ["attention(4, relative=rope)", "gated_feed_forward"],
    "window": ["attention(4, mask=causal & window(32), relative=rope)", "feed_forward"],
    "linear": ["linear_attention(4)", "feed_forward"],
    "gru": ["gru"],
    "pairs": ["attention(4)", "cross_attention(4)", "feed_forward"],
}
KEY = "secret"
PATH, CHATS = "/v1/completions", "/v1/chat/completions"
PICTURES = "pictures"
"""Name of the model that reads pictures."""
QUESTIONS = ("is it dark", "is it bright")
TEMPLATE = "{{ messages[-1].content }}{{ bos_token }}"
_LEAST = 4
"""Requests of each client, however slow the machine is."""


@dataclass
class Seen:
    """What the clients have seen. Appending to lists is safe among threads."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)


def drawn(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    """Dark and bright pictures in turn, with noise."""
    rng = np.random.default_rng(seed)
    return [
        np.clip((200 if i % 2 else 40) + rng.normal(0, 10, (size, size)), 0, 255).astype(np.uint8) for i in range(count)
    ]


def save_picture_run(folder: Path, width: int) -> None:
    """Train a model that answers questions about pictures, for two steps."""
    model = {
        "width": width,
        "num_layers": 2,
        "context_length": 128,
        "frontend": {"kind": "joined", "inputs": {"picture": "patches(patch=16)"}},
        "blocks": [{"branches": ["attention(4)", "feed_forward"]}],
    }
    recipe = {
        "data": {"source": "memory", "inputs": {"picture": "images(height=64, width=64)", "words": "word_list"}},
        "task": "translation",
        "model": model,
        "training": {"steps": 2, "batch_size": 4, "validation": {"every": 2}},
        "sample": {"temperature": 0, "max_new_tokens": 4},
    }
    rows = [
        {"picture": picture, "words": QUESTIONS[i % 2], "target": "yes" if i % 3 else "no"}
        for i, picture in enumerate(drawn(40, 64))
    ]
    qkv.train(Recipe.parse(recipe), folder, data=rows, on_event=lambda event: None)


@contextmanager
def server(folder: Path, width: int, pictures: bool) -> Iterator[tuple[str, psutil.Process]]:
    """Server process with one model for each of ``BRANCHES``: (address, process)."""
    tokenizer = train(tokenizers.BPE(vocab_size=300), [TEXT]).with_specials(("bos", "eos"))
    for name, branches in BRANCHES.items():
        frontend = {"kind": "text", "vocab_size": tokenizer.vocab_size, "positions": "none"}
        shape: dict[str, Any] = {"num_layers": 2, "context_length": 256, "frontend": frontend}
        encoder = {**shape, "blocks": [{"branches": ["attention(4, mask=full)", "feed_forward"]}]}
        shape |= {"width": width, "blocks": [{"branches": branches}]} | (
            {"encoder": encoder} if name == "pairs" else {}
        )
        task = "translation" if name == "pairs" else None
        qkv.save(qkv.build(Model.parse(shape), 1), folder / name, tokenizer=tokenizer, task=task)
    command = [sys.executable, "-m", "qkv", "serve", *(str(folder / name) for name in BRANCHES), "--port", "0"]
    if pictures:
        save_picture_run(folder / PICTURES, width)
        (folder / "chat.jinja").write_text(TEMPLATE)
        command += [str(folder / PICTURES), "--chat-template", str(folder / "chat.jinja"), "--pictures", str(folder)]
    environment = {**os.environ, "QKV_API_KEY": KEY}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as served:
        assert served.stdout is not None
        said = next((line for line in served.stdout if line.startswith("serving at")), None)
        if said is None:
            raise SystemExit(f"the server {Died('qkv serve', served.wait(60))} before it served")
        url = said.split()[2]
        try:
            yield url, psutil.Process(served.pid)
        finally:
            served.terminate()
            print(f"the server ended with {served.wait(60)}")


def ordinary(client: httpx.Client, seen: Seen, rng: random.Random, wait: float = 0.0) -> None:
    """Ask for a text and check that it is whole. wait: seconds before each event is read."""
    tokens, stream = rng.randint(8, 64), bool(wait) or rng.random() < 0.5
    body = {"model": rng.choice(list(BRANCHES)), "prompt": TEXT[: rng.randint(3, 200)], "max_tokens": tokens}
    body["ignore_eos"] = True
    began, first, usage = time.perf_counter(), None, None
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        done = False
        with client.stream("POST", PATH, json=body) as answer:
            status = answer.status_code
            for line in answer.iter_lines():
                first = first or time.perf_counter() - began
                time.sleep(wait)
                done = done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
        status = status if done else 0
    else:
        answer = client.post(PATH, json=body)
        status, usage = answer.status_code, answer.json().get("usage")
    if status != 200 or usage is None or usage["completion_tokens"] != tokens:
        seen.lost.append(f"status {status}, {usage}, {tokens} asked for")
    if not wait:
        seen.seconds.append(time.perf_counter() - began)
        seen.first += [first] if first else []
    seen.tokens.append(tokens)
    seen.outcomes.append("slow reader" if wait else "streamed" if stream else "whole")


def about_picture(client: httpx.Client, seen: Seen, rng: random.Random) -> None:
    """Ask about a picture and check that the answer is whole."""
    tokens, began = rng.randint(8, 64), time.perf_counter()
    body = {"model": PICTURES, "messages": asked(as_uri(rng.choice(drawn(8, 64))), rng.choice(QUESTIONS))}
    answer = client.post(CHATS, json={**body, "max_tokens": tokens, "ignore_eos": True})
    usage = answer.json().get("usage")
    if answer.status_code != 200 or usage is None or usage["completion_tokens"] != tokens:
        seen.lost.append(f"picture: status {answer.status_code}, {usage}, {tokens} asked for")
    seen.seconds.append(time.perf_counter() - began)
    seen.tokens.append(tokens)
    seen.outcomes.append("picture")


def asked(address: str, text: str = QUESTIONS[0]) -> list[dict[str, Any]]:
    """Messages of a chat about one picture."""
    parts = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def odd_pictures() -> dict[str, str]:
    """Pictures that a server refuses, by name."""
    file = io.BytesIO()
    Image.new("1", (8_000, 6_000)).save(file, "PNG")
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    claimed = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">II", zlib.crc32(header), 8) + b"IDAT"
    )
    files = {"claimed pixels": claimed + bytes(8), "many pixels": file.getvalue(), "truncated": file.getvalue()[:2_000]}
    uris = {name: f"data:image/png;base64,{base64.b64encode(content).decode()}" for name, content in files.items()}
    return {**uris, "address": "http://127.0.0.1:9/a.png", "file outside": "../../etc/hostname"}


def dropped(client: httpx.Client, seen: Seen, rng: random.Random) -> None:
    """Ask for a long text and leave after its first event."""
    body = {"model": rng.choice(list(BRANCHES)), "prompt": "the", "max_tokens": 1000, "stream": True}
    with client.stream("POST", PATH, json=body) as answer:
        next(answer.iter_lines())
    seen.outcomes.append("dropped")


def refused(
    name: str, status: int, path: str = PATH, **request: Any
) -> Callable[[httpx.Client, Seen, random.Random], None]:
    """Request that is answered with an error."""

    def ask(client: httpx.Client, seen: Seen, rng: random.Random) -> None:
        answer = client.post(path, **request)
        if answer.status_code != status or "message" not in answer.json().get("error", {}):
            seen.lost.append(f"{name}: status {answer.status_code}")
        seen.outcomes.append(f"{name}: {status}")

    return ask


def faults(large: int) -> list[Callable[[httpx.Client, Seen, random.Random], None]]:
    """Requests that misbehave. large: bytes of a body that is too large."""
    typed = {"content-type": "application/json"}
    stops = b'{"prompt": "a", "stop": [' + b'"a",' * 1_000_000 + b'"b"]}'
    return [
        dropped,
        lambda client, seen, rng: ordinary(client, seen, rng, wait=0.05),
        refused("wrong key", 401, json={"prompt": "a"}, headers={"authorization": "Bearer other"}),
        refused("not UTF-8", 400, content=b'{"prompt": "\xff"}', headers=typed),
        refused("nested", 400, content=b"[" * 100_000, headers=typed),
        refused("million stops", 400, content=stops, headers=typed),
        refused("unknown model", 404, json={"model": "other", "prompt": "a"}),
        refused("large body", 413, content=b"x" * large, headers=typed),
    ]


def picture_faults() -> list[Callable[[httpx.Client, Seen, random.Random], None]]:
    """Chats about pictures that misbehave."""
    odd = odd_pictures().items()
    return [refused(name, 400, CHATS, json={"model": PICTURES, "messages": asked(each)}) for name, each in odd]


def client_loop(url: str, number: int, until: float, seen: Seen, good: list[Any], bad: list[Any]) -> None:
    """Ask until the end of the time: one of ``good``, and one time in eight one of ``bad``."""
    rng = random.Random(number)
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        count = 0
        while time.perf_counter() < until or count < _LEAST:
            count += 1
            try:
                (rng.choice(bad) if count > 2 and rng.random() < 1 / 8 else rng.choice(good))(client, seen, rng)
            except httpx.HTTPError as error:
                seen.lost.append(f"{type(error).__name__}: {error}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--width", type=int, default=64, help="width of the models")
    options.add_argument("--pictures", action="store_true", help="chats about pictures, too")
    options.add_argument("--large", type=int, default=100_000_000, help="bytes of the largest body")
    given = options.parse_args()
    if given.smoke:
        given.minutes, given.clients, given.width, given.large, given.pictures = 0.05, 4, 16, 9_000_000, True
    return given


def load(url: str, process: psutil.Process, given: argparse.Namespace) -> Seen:
    """Ask with all clients, and watch the memory of the server."""
    seen, began = Seen(), time.perf_counter()
    until, good, bad = began + 60 * given.minutes, [ordinary], faults(given.large)
    if given.pictures:
        good, bad = [*good, about_picture], [*bad, *picture_faults()]
    threads = [
        threading.Thread(target=client_loop, args=(url, number, until, seen, good, bad))
        for number in range(given.clients)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.memory.append((time.perf_counter() - began, process.memory_info().rss))
        time.sleep(0.5)
    return seen


def left(url: str) -> str:
    """Texts that still run or wait, and bytes of state, after the last answer."""
    time.sleep(1)
    text = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    names = ("qkv_requests_running", "qkv_requests_waiting", "qkv_state_bytes")
    sums = [sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{")) for name in names]
    return ", ".join(f"{value:.0f}" for value in sums)


def main() -> None:
    """Run the server and its clients, and print what was seen."""
    given = arguments()
    say_where("starlette", "uvicorn", "httpx")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), given.width, given.pictures) as (url, process):
        seen = load(url, process, given)
        rest = left(url)
    seconds = seen.memory[-1][0]
    after = [size for at, size in seen.memory if at > seconds / 5]
    waits, firsts = (statistics.quantiles(each, n=20) for each in (seen.seconds, seen.first))
    rows = [
        ("requests", f"{len(seen.outcomes):,}"),
        ("lost", f"{len(seen.lost):,}"),
        ("tokens/s", f"{sum(seen.tokens) / seconds:,.0f}"),
        ("whole answer, median and 95 % s", f"{waits[9]:.2f}, {waits[18]:.2f}"),
        ("first event, median and 95 % s", f"{firsts[9]:.2f}, {firsts[18]:.2f}"),
        (
            "MiB of the server after a fifth, most, at the end",
            ", ".join(f"{size / 2**20:,.0f}" for size in (after[0], max(after), after[-1])),
        ),
        ("running, waiting, bytes of state afterwards", rest),
    ]
    print_table(f"{given.clients} clients for {seconds:.0f} s", ["quantity", "value"], rows)
    print_table("requests by kind", ["kind", "number"], sorted(Counter(seen.outcomes).items()))
    for sentence in seen.lost[:10]:
        print(f"lost: {sentence}")


if __name__ == "__main__":
    main()
