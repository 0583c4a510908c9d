"""Load test of the server: many clients at once on models of several kinds; nothing may be lost, and memory stays flat.

    python benchmarks/serve.py --minutes 5 --clients 32

A fresh process serves a Llama, a windowed, a linear-attention, a GRU and an encoder–decoder model with random weights.
Each client sends one request after the other: greedy texts of 8 to 48 tokens, whole or streamed; some clients leave in
the middle of a stream, some send what is no JSON. Every whole answer to the same request must be the same text.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

import qkv
from qkv.report.table import print_table
from qkv.spec import tokenizers as spec
from qkv.tokenizers.train import train
from side_by_side import parser, say_where

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs.\n" * 8
MODELS = {
    "llama": ["attention(4, num_kv_heads=2, relative=rope)", "gated_feed_forward"],
    "window": ["attention(4, mask=causal & window(16), relative=rope)", "feed_forward"],
    "linear": ["linear_attention(4)", "feed_forward"],
    "gru": ["gru"],
    "pairs": ["attention(4)", "cross_attention(4)", "feed_forward"],
}
_JSON = {"content-type": "application/json"}
PROMPTS = 40
"""Number of different requests per model, so that answers repeat."""


@dataclass
class Seen:
    """What clients saw: kinds of outcomes, seconds of whole answers, texts by request, and what went wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: str, seconds: float | None = None, wrong: str = "") -> None:
        """Count one request."""
        with self.lock:
            self.outcomes[outcome] += 1
            self.seconds += [] if seconds is None else [seconds]
            self.wrong += [wrong] if wrong else []

    def check(self, key: tuple[str, int], text: str) -> str:
        """Sentence if a request was answered otherwise before, else ""."""
        with self.lock:
            first = self.texts.setdefault(key, text)
        return "" if first == text else f"{key}: {text!r}, and before {first!r}"


def build_runs(folder: Path, width: int) -> list[str]:
    """Runs of all models in ``folder``, as arguments of ``qkv serve``."""
    tokenizer = train(spec.BPE(vocab_size=300), [TEXT]).with_specials(("bos", "eos"))
    found = []
    for name, branches in MODELS.items():
        sizes = {"width": width, "num_layers": 2, "context_length": 256, "head": "language_model(tied=false)"}
        frontend = {"kind": "text", "vocab_size": tokenizer.vocab_size, "positions": "none"}
        encoder = {"blocks": [{"branches": ["attention(4, mask=full)", "feed_forward"]}], "frontend": frontend}
        more = {"encoder": {**encoder, "context_length": 256}} if name == "pairs" else {}
        model = qkv.Model.parse(
            {**sizes, **more, "init_std": 0.3, "frontend": frontend, "blocks": [{"branches": branches}]}
        )
        qkv.save(qkv.build(model, seed=1), folder / name, tokenizer, task="translation" if more else None)
        found.append(f"{name}={folder / name}")
    return found


def start(runs: list[str]) -> tuple[subprocess.Popen[str], str]:
    """Server process, and its address."""
    command = [sys.executable, "-m", "qkv", "serve", *runs, "--port", "0", "--memory", str(64 * 2**20)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving at "):
            return process, line.split()[2]
    raise SystemExit(f"the server ended with {process.wait()}")


def client(url: str, seed: int, until: float, seen: Seen) -> None:
    """Send requests until the time ``until``."""
    rng = random.Random(seed)
    with httpx.Client(base_url=url, timeout=120) as http:
        while time.monotonic() < until:
            kind = rng.choices(["whole", "streamed", "left", "garbage"], [45, 45, 7, 3])[0]
            name, number = rng.choice(list(MODELS)), rng.randrange(PROMPTS)
            words = random.Random(number).choices(TEXT.split(), k=1 + number)
            body = {"model": name, "prompt": " ".join(words), "max_tokens": 8 + number, "temperature": 0}
            try:
                ask(http, kind, body, (name, number), seen)
            except httpx.HTTPError as error:
                seen.add(kind, wrong=f"{name}: {error!r}")


def ask(http: httpx.Client, kind: str, body: dict[str, object], key: tuple[str, int], seen: Seen) -> None:
    """Send one request and check its answer."""
    began = time.monotonic()
    if kind == "garbage":
        answer = http.post("/v1/completions", content=b"\xff{not json", headers=_JSON)
        ok = answer.status_code == 400 and "message" in answer.json()["error"]
        seen.add(kind, wrong="" if ok else f"garbage: {answer.status_code} {answer.text[:100]}")
        return
    if kind == "whole":
        answer = http.post("/v1/completions", json=body)
        found = answer.json()
        wrong = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:100]}"
        wrong = wrong or seen.check(key, found["choices"][0]["text"])
        seen.add(kind, time.monotonic() - began, wrong)
        return
    text, ended = "", False
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for count, line in enumerate(answer.iter_lines()):
            if kind == "left" and count > 4:
                seen.add(kind)
                return
            ended = ended or line == "data: [DONE]"
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    wrong = "" if ended else "a stream did not end"
    seen.add("streamed", time.monotonic() - began, wrong or seen.check(key, text))


def gauges(url: str) -> dict[str, float]:
    """Sum of each gauge of running and waiting texts and of bytes, from /metrics."""
    found: Counter[str] = Counter()
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            found[name.partition("{")[0]] += float(value)
    return dict(found)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--width", type=int, default=64, help="width of the models")
    given = options.parse_args()
    if given.smoke:
        given.minutes, given.clients, given.width = 0.05, 4, 16
    return given


def main() -> None:
    """Run the load test and print what was seen."""
    given, seen = arguments(), Seen()
    say_where()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(build_runs(Path(folder), given.width))
        server, began = psutil.Process(process.pid), time.monotonic()
        until, bytes_seen = began + 60 * given.minutes, list[int]()
        clients = [threading.Thread(target=client, args=(url, i, until, seen)) for i in range(given.clients)]
        for each in clients:
            each.start()
        while any(each.is_alive() for each in clients):
            time.sleep(min(5.0, 12 * given.minutes))
            bytes_seen.append(server.memory_info().rss)
        left = gauges(url)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    rows = [(kind, count) for kind, count in sorted(seen.outcomes.items())]
    print_table(f"{given.clients} clients, {given.minutes:g} minutes, five models", ["requests", "number"], rows)
    waits = statistics.quantiles(seen.seconds, n=20)
    rate = len(seen.seconds) / (60 * given.minutes)
    print(f"{rate:.1f} answers/s; seconds of an answer: median {waits[9]:.2f}, 95 % {waits[18]:.2f}")
    fifth = bytes_seen[len(bytes_seen) // 5]
    print(f"memory of the server, MiB: after a fifth {fifth / 2**20:,.0f}, at the end {bytes_seen[-1] / 2**20:,.0f}")
    busy = {name: value for name, value in left.items() if value and ("running" in name or "waiting" in name)}
    print(f"running or waiting at the end: {busy or 'none'}; exit code {code}")
    print(f"wrong: {len(seen.wrong)}" + "".join(f"\n  {each}" for each in seen.wrong[:10]))
    if seen.wrong or busy or code:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
