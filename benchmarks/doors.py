"""Benchmark of one model through every way in which users reach it: in memory, loaded, by command and by server.

    python benchmarks/doors.py --model SmolLM2.gguf --out benchmarks/results/doors.md

    in memory   ``sample.generate`` of a copy of the model, with weights in the precision
    loaded      ``qkv.generate`` of the text, of the folder or file loaded by ``qkv.load``
    command     ``qkv generate``, which prints the text in pieces
    server      a streamed completion of ``qkv serve``

The places are the GGUF file or folder that is given, its exports in fp32 and bf16, and the runs that ``qkv quantize``
makes of it. Without ``--model``: GPT-2 124M with random weights. A rate is the number of tokens by which one text is
longer than another, over the seconds by which it takes longer; of the command, which starts a process for each text,
the number of tokens in the last three quarters of a text of twice the length, over the seconds in which they arrive.

Where a process has its memory changes its rate by a fifth, so each rate, also the one in memory, is measured in a fresh
process that runs alone, and all ways take turns, in both directions. The table has the median rate in memory, each
way's median and quartiles as shares of it, and the share of the best rates. Below the table are the seconds of the
first answer of a fresh server, and those of a later one.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import httpx

import qkv
from load_checkpoint import gpt2
from qkv.cli.main import main as command_line
from qkv.generation.decode.sample import generate
from qkv.generation.text import prompt_ids
from qkv.interop.save import save_published
from qkv.report.table import print_table
from qkv.runs.bench.sides import lowered
from qkv.runs.run import Run
from qkv.spec import tokenizers
from qkv.spec.generation import Generation
from qkv.tokenizers.gguf.file import is_gguf
from qkv.tokenizers.train import train
from side_by_side import parser, say_where, with_rows_of, write_table

PROMPT = "w1 w2 w3 w4 w5 w6 w7 w8"
TEXT = "Here is a long story about a lighthouse, its keeper and the sea. Once upon a time"
WAYS = ("in memory", "loaded", "command", "server")
SMOKE = 24
"""Tokens of a text of a smoke test."""
AS_STORED = "as stored"
"""Precision of a GGUF file, whose matrices stay as they are."""
LEAST = 0.95
"""Share of the rate in memory that every way should reach."""


class Place(NamedTuple):
    """Folder or file with a model, and the precision of its weights while it decodes."""

    name: str
    path: Path
    precision: str


def places(model: Path, folder: Path) -> list[Place]:
    """``model``, its exports and its quantised runs, which are written to ``folder``."""
    made = [Place(f"{model.name}, as given", model, AS_STORED if is_gguf(model) else "fp32")]
    for precision in ("fp32", "bf16"):
        out = folder / f"export-{precision}"
        _call("export", str(model), "--out", str(out), "--dtype", precision, "--no-check")
        made.append(Place(f"export in {precision}", out, precision))
    for precision, bits in (("bf16", 16), ("int8", 8), ("int4", 4)):
        run = qkv.quantize(model, folder / f"run-{bits}", bits=bits).run
        made.append(Place(f"run in {bits} bits", run.folder, precision))
    return made


def _call(*words: str) -> None:
    if command_line(list(words)) != 0:
        raise SystemExit(f"qkv {' '.join(words)} failed")


def random_gpt2(folder: Path, smoke: bool) -> Path:
    """Published folder of GPT-2 124M with random weights, whose tokens are words; ``smoke``: a tiny one."""
    spec = gpt2(64, 1, 300) if smoke else gpt2(768, 12, 50257)
    words = " ".join(f"w{i}" for i in range(spec.vocab_size or 0))
    tokenizer = train(tokenizers.Words(vocab_size=spec.vocab_size), [words])
    if tokenizer.vocab_size > (spec.vocab_size or 0):
        raise SystemExit(f"the tokenizer has {tokenizer.vocab_size} tokens, and the model {spec.vocab_size} rows")
    save_published(qkv.build(spec, seed=1).eval(), folder, tokenizer)
    return folder


Rate = Callable[[int], float]
"""Function (number of tokens of a text) -> tokens per second, without what happens once in each text."""


class Share(NamedTuple):
    """Share of the rate in memory: quartiles over the median rate in memory, and the best over the best in memory.

    Where the speed of memory drifts between rounds, the best rates are those of equally fast minutes.
    """

    lower: float
    middle: float
    upper: float
    best: float

    @classmethod
    def of(cls, rates: list[float], in_memory: list[float]) -> Share:
        """Shares of ``rates`` of the rates in memory."""
        parts = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else rates * 3
        return cls(*(part / median(in_memory) for part in parts), max(rates) / max(in_memory))

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.lower:.2f} to {self.upper:.2f}), best {self.best:.2f}"


class Rates(NamedTuple):
    """Rates of a place: tokens per second in memory, and the share of it by each other way."""

    in_memory: float
    shares: dict[str, Share]

    @classmethod
    def of(cls, rounds: list[dict[str, float]]) -> Rates:
        """Rates of all ``rounds``, each of which has a rate by every way."""
        first, *others = WAYS
        in_memory = [each[first] for each in rounds]
        return cls(median(in_memory), {way: Share.of([each[way] for each in rounds], in_memory) for way in others})


def rate_of(write: Callable[[int], float]) -> Rate:
    """Rate of ``write``, which returns the seconds of a text: the difference of a long and a short one."""

    def measure(new: int) -> float:
        short = _quarter(new)
        before, after = write(short), write(new)
        return (new - short) / (after - before)

    return measure


def _quarter(new: int) -> int:
    return max(2, new // 4)


def warm_rate(measure: Rate, new: int) -> float:
    """Median of three rates, after texts that build kernels, lay out weights and time choices."""
    measure(new)
    return median(measure(new) for _ in range(3))


def in_memory(place: Place, model: Path, prompt: str) -> Rate:
    """``sample.generate`` of a copy of the weights of ``model`` in the precision of the place."""
    run = qkv.load(model) if place.precision == AS_STORED else qkv.load(model, dtype="fp32")
    copied = copy.deepcopy(run.model) if place.precision == AS_STORED else lowered(run.model, place.precision)
    ids = prompt_ids(run.tokenizer, prompt)

    def write(count: int) -> float:
        begin = time.perf_counter()
        generate(copied, [ids], Generation(max_new_tokens=count, temperature=0.0))
        return time.perf_counter() - begin

    return rate_of(write)


def loaded(place: Place, _model: Path, prompt: str) -> Rate:
    """``qkv.generate`` of a text."""
    run = qkv.load(place.path)

    def write(count: int) -> float:
        begin = time.perf_counter()
        qkv.generate(run, prompt, max_new_tokens=count, temperature=0.0)
        return time.perf_counter() - begin

    return rate_of(write)


def by_process(way: str, place: Place, model: Path, prompt: str, new: int) -> float:
    """Rate by ``way`` in a fresh process, which runs this file."""
    words = [sys.executable, __file__, "--way", way, "--place", *map(str, place), "--prompt", prompt]
    done = subprocess.run([*words, "--model", str(model), "--new", str(new)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{way} of {place.name} failed")
    return float(done.stdout.split()[-1])


def by_command(place: Place, prompt: str, new: int) -> float:
    """Rate of the bytes that ``qkv generate`` prints after the prompt; all tokens are assumed to have equally many."""
    new *= 2  # pieces arrive 25 times a second, which is coarse for a short text
    words = ["--max-new-tokens", str(new), "--temperature", "0"]
    command = [sys.executable, "-m", "qkv", "generate", str(place.path), prompt, *words]
    read, arrived = 0, [(time.perf_counter(), 0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            read += len(piece)
            arrived.append((time.perf_counter(), read - len(prompt)))
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    end, count = arrived[-1]
    begin, short = next((each for each in arrived[:-1] if each[1] >= count / 4), arrived[0])  # whole if it is one piece
    return new * (1 - short / count) / (end - begin)


class Server:
    """``qkv serve`` of a place, in a process of its own."""

    def __init__(self, place: Place):
        command = [sys.executable, "-m", "qkv", "serve", str(place.path), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = self._address().removeprefix("http://")
        self.model = httpx.get(f"http://{self.address}/v1/models").json()["data"][0]["id"]

    def _address(self) -> str:
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("serving at")), None)
        if line is None:
            raise SystemExit("qkv serve ended before it served")
        return line.split()[2]

    def times(self, prompt: str, new: int) -> list[float]:
        """Times of the request and of each read of the streamed answer, which is parsed at its end: a client on the
        same cores would take time from the model.
        """
        asked = {"model": self.model, "prompt": prompt, "max_tokens": new, "temperature": 0, "ignore_eos": True}
        body, read = json.dumps({**asked, "stream": True}), list[bytes]()
        connection, found = http.client.HTTPConnection(self.address, timeout=600), [time.perf_counter()]
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while piece := answer.read1():
            read.append(piece)
            found.append(time.perf_counter())
        connection.close()
        text = b"".join(read).decode()
        if answer.status != 200 or '"error"' in text or "data: [DONE]" not in text:
            raise SystemExit(f"qkv serve answered {answer.status}: {text[:300]}")
        return found

    def by_request(self, prompt: str) -> Rate:
        """Streamed completion."""

        def write(count: int) -> float:
            times = self.times(prompt, count)
            return times[-1] - times[0]

        return rate_of(write)

    def end(self) -> None:
        """Stop the process."""
        self.process.terminate()
        self.process.communicate(timeout=30)


@contextmanager
def served(place: Place) -> Iterator[Server]:
    """``Server`` that is stopped at the end."""
    server = Server(place)
    try:
        yield server
    finally:
        server.end()


def first_answer(place: Place, prompt: str, repeats: int) -> tuple[float, float]:
    """Seconds of the first answer of a fresh server, and the median of five later ones; those of the best ratio. No
    prompt begins like another one, whose state would be read instead.
    """
    found, words = [], prompt.split()
    prompts = [" ".join(words[begin:] + words[:begin]) for begin in range(6)]
    for _ in range(repeats):
        with served(place) as server:
            seconds = [(times := server.times(each, 8))[-1] - times[0] for each in prompts]
        found.append((seconds[0], sorted(seconds[1:])[2]))
    return min(found, key=lambda pair: pair[0] / pair[1])


def by_server(place: Place, prompt: str, new: int) -> float:
    """Rate of a fresh server."""
    with served(place) as server:
        return warm_rate(server.by_request(prompt), new)


def measure_places(several: list[Place], model: Path, prompt: str, new: int, rounds: int) -> dict[str, Rates]:
    """Rates of each place, all made of ``model``."""
    found: dict[str, Rates] = {}
    for place in several:
        _check_length(qkv.load(place.path), prompt, 2 * new)
        turns = [WAYS[:: -1 if i % 2 else 1] for i in range(rounds)]
        found[place.name] = Rates.of([{way: rate(way, place, model, prompt, new) for way in turn} for turn in turns])
        print_table("", ["place", "precision", *WAYS], [_row(place, found[place.name])])
    return found


def rate(way: str, place: Place, model: Path, prompt: str, new: int) -> float:
    """Tokens per second by ``way`` in a fresh process."""
    match way:
        case "command":
            return by_command(place, prompt, new)
        case "server":
            return by_server(place, prompt, new)
        case _:
            return by_process(way, place, model, prompt, new)


def _check_length(run: Run, prompt: str, new: int) -> None:
    """Exit if the model ends its text before ``new`` tokens, whose rate would be one of fewer."""
    shorter, longer = (qkv.generate(run, prompt, max_new_tokens=most, temperature=0.0) for most in (new - 8, new))
    if shorter == longer:
        raise SystemExit(f"{run.folder} ends its text before {new} tokens; ask for fewer")


def _row(place: Place, rates: Rates) -> list[str]:
    shares = [rates.shares[way] for way in WAYS[1:]]
    return [
        place.name,
        place.precision,
        f"{rates.in_memory:.1f}",
        *map(str, shares),
    ]


def main() -> None:
    """Measure, print and write the table."""
    options = parser(__doc__ or "")
    options.add_argument("--model", type=Path, help="a published folder or GGUF file; default: random GPT-2 124M")
    options.add_argument("--new", type=int, default=96, help="tokens of a text")
    options.set_defaults(repeats=5)
    options.add_argument("--only", nargs="+", default=[""], help="parts of the names of places; other rows stay")
    options.add_argument("--out", type=Path, help="page whose table is written")
    options.add_argument("--way", choices=WAYS[:2], help="print one rate by this way, of --place with --prompt")
    options.add_argument("--place", nargs=3, help="name, path and precision")
    options.add_argument("--prompt")
    asked = options.parse_args()
    if asked.way:
        name, path, precision = asked.place
        way = {"in memory": in_memory, "loaded": loaded}[asked.way]
        print(warm_rate(way(Place(name, Path(path), precision), asked.model, asked.prompt), asked.new))
        return
    say_where()
    new, repeats = (SMOKE, 1) if asked.smoke else (asked.new, asked.repeats)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = asked.model or random_gpt2(folder / "gpt2", asked.smoke)
        prompt = TEXT if asked.model else PROMPT
        several = places(given, folder)
        several = several[-1:] if asked.smoke else several
        first_place, several = several[0], [p for p in several if any(part in p.name for part in asked.only)]
        rates = measure_places(several, given, prompt, new, repeats)
        first, later = first_answer(first_place, prompt, 1 if asked.smoke else 3)
    rows = [_row(place, rates[place.name]) for place in several]
    columns = ["place", "precision", "in memory, tokens/s", *(f"{way}, share" for way in WAYS[1:])]
    print_table("\nshare of the rate in memory: median and quartiles", columns, rows)
    shares = [(n, way, share) for n, each in rates.items() for way, share in each.shares.items()]
    short = [(n, way) for n, way, share in shares if max(share.middle, share.best) < LEAST]
    print("below 0.95 of the rate in memory: " + (", ".join(f"{n} by {way}" for n, way in short) or "none"))
    said = f"First answer of a fresh server {first:.3f} s, a later one {later:.3f} s ({first / later:.2f} ×)."
    print(said)
    if asked.out:
        name = f"{given.stem}: doors.py"
        write_table(asked.out, name, columns, with_rows_of(asked.out, name, rows, keys=2), said)


if __name__ == "__main__":
    main()
