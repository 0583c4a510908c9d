"""Benchmark of LoRA on packed conversations: rate, memory and loss beside peft and transformers.

    python benchmarks/lora.py --model SmolLM2-135M-Instruct.Q4_1.gguf --write benchmarks/results/lora.md

Every side trains adapters of rank 16 in all linear layers of the blocks by AdamW, from the same weights, on the same
batches: conversations that a program writes, rendered by the chat template of the model and packed into rows. Only
tokens of answers are targets, and conversations of a row do not see each other. B starts at 0, so the loss of the first
step is that of the model itself and equal on all sides up to rounding; A is drawn by each library.

A side is a fresh process that runs alone, and sides take turns. The table has the median of the seconds of a step
without the first two, tokens and targets per second, the highest peak of memory since the start of the process, and
the losses of the first and the last step. Without ``--model``: a random Llama of the sizes of SmolLM2-135M.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from load_checkpoint import llama
from peer_process import Died, living
from qkv.data.batching.batch import IGNORED
from qkv.interop.load import load_published
from qkv.interop.save import save_published
from qkv.models.build import build
from qkv.report.table import print_table
from qkv.tokenizers.chat_template import ChatTemplate, find_template
from side_by_side import available, parser, say_where, write_table

COMMON = """
import json, re, sys, time
from pathlib import Path
import torch
from safetensors.torch import load_file
source, file = sys.argv[1:]
batches = load_file(file)
steps = len(batches["ids"])

def report(step):
    seconds, losses = [], []
    for i in range(steps):
        start = time.perf_counter()
        losses.append(step(i))
        seconds.append(time.perf_counter() - start)
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e6
    print(json.dumps({"seconds": seconds, "losses": losses, "peak": peak}), flush=True)
"""
PEFT = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.utils import logging
logging.disable_progress_bar()
torch.manual_seed(1)
base = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, PRECISION))
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=targets)).train()
learned = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learned, lr=2e-4, betas=(0.9, 0.99), weight_decay=0.0)

def step(i):
    ids, positions, labels = (batches[name][i] for name in ("ids", "positions", "labels"))
    loss = model(input_ids=ids, position_ids=positions, labels=labels, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learned, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())

report(step)
"""
QKV = """
import qkv
from qkv.costs.counting.losses import backward
from qkv.data.batching.batch import IGNORED, Batch
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.models.edit.adapt import adapt, narrow_frozen
from qkv.models.heads.language_loss import loss_of_vectors
from qkv.ops.linear.precision import autocast
from qkv.spec.models.quantization import Quantization
from qkv.spec.training import Training
from qkv.tasks.text.next_token import at_targets
from qkv.training.optim.optimisers import build_optimizer
torch.manual_seed(1)
model = load_published(source, "fp32").model
adapters = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["qkv", "output", "gate_up", "down"]}
optimizer = {"kind": "adamw", "lr": 2e-4, "weight_decay": 0.0}
training = Training.parse({"adapt": adapters, "optimizer": optimizer, "precision": PRECISION})
adapt(model.train(), training)
narrow_frozen(model, training, Quantization.parse({"bits": BITS}) if BITS else None)
optimizer = build_optimizer(training.optimizer, model)

def loss_of(model, batch):
    vectors, _ = model.features(batch.input)
    return loss_of_vectors(model, *at_targets(vectors, batch.targets))

def step(i):
    targets = torch.full_like(batches["labels"][i], IGNORED)
    targets[:, :-1] = batches["labels"][i][:, 1:]
    signal = Signal(batches["ids"][i], positions=batches["positions"][i], segments=batches["segments"][i])
    batch = Batch.of(signal, targets)
    nats = backward(model, loss_of, [batch], batch.num_targets, autocast(training.precision, torch.device("cpu")))
    torch.nn.utils.clip_grad_norm_(list(optimizer.names), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(nats) / batch.num_targets

report(step)
"""


class Side(NamedTuple):
    """Code of a side and the values of its constants."""

    code: str
    constants: Mapping[str, Any]


def _ours(precision: str, bits: int | None) -> Side:
    return Side(QKV, {"PRECISION": precision, "BITS": bits})


SIDES = {
    "peft, fp32": Side(PEFT, {"PRECISION": "float32"}),
    "peft, bf16": Side(PEFT, {"PRECISION": "bfloat16"}),
    "qkv, fp32": _ours("fp32", None),
    "qkv, 16 bits": _ours("bf16", 16),
    "qkv, 8 bits": _ours("bf16", 8),
    "qkv, 4 bits": _ours("bf16", 4),
}
"""Sides by name. qkv: frozen weights in fp32, or in fewer bits with products in bf16."""
COLUMNS = ["side", "step, s", "tokens/s", "targets/s", "peak memory, GB", "first loss", "last loss"]
PAGE = """# LoRA

Adapters trained on packed conversations, in fresh processes. [lora.py](../lora.py) measures and writes this page.

<!-- table lora: lora.py -->
<!-- end of table lora -->
"""
NOT_TIMED = 2
"""First steps, in which implementations are chosen and memory is taken."""
_GOODS = ("apples", "pears", "nails", "books", "lamps", "cups", "chairs", "shirts")


class Rows(NamedTuple):
    """Packed rows: ids, position in the conversation, number of the conversation, and id or ``IGNORED`` as label."""

    ids: list[int]
    positions: list[int]
    segments: list[int]
    labels: list[int]


def conversation(rng: random.Random) -> list[dict[str, str]]:
    """One to four questions about a list of prices, with answers."""
    prices = {each: rng.randint(2, 99) for each in rng.sample(_GOODS, 4)}
    messages = []
    for _ in range(rng.randint(1, 4)):
        counts = {each: rng.randint(2, 9) for each in rng.sample(sorted(prices), 2)}
        asked = " and ".join(f"{count} {each}" for each, count in counts.items())
        table = "; ".join(f"{each}: {price} coins" for each, price in prices.items())
        worked = [f"{count} {each} cost {count * prices[each]} coins." for each, count in counts.items()]
        total = sum(count * prices[each] for each, count in counts.items())
        question = f"Here is a list of prices. {table}. What do {asked} cost together?"
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"{' '.join(worked)} Together they cost {total} coins."},
        ]
    return messages


def encoded(template: ChatTemplate, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Ids of a conversation, and its labels: the ids of answers with their ends, elsewhere ``IGNORED``."""
    ids = template.ids(messages, add_generation_prompt=False)
    labels = [IGNORED] * len(ids)
    for answer in range(1, len(messages), 2):
        begin = len(template.ids(messages[:answer]))
        end = len(template.ids(messages[: answer + 1], add_generation_prompt=False)) - 1  # without the line break
        labels[begin:end] = ids[begin:end]
    return ids, labels


def talks(template: ChatTemplate, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Ids and labels of one conversation after another."""
    while True:
        yield encoded(template, conversation(rng))


def noise(vocab_size: int, rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Random ids of the lengths of conversations, of which the second half are targets."""
    while True:
        ids = rng.choices(range(vocab_size), k=rng.randint(50, 300))
        yield ids, [IGNORED if 2 * i < len(ids) else each for i, each in enumerate(ids)]


def packed(several: Iterator[tuple[list[int], list[int]]], length: int) -> Iterator[Rows]:
    """Rows of ``length`` full of conversations, of which the last is cut."""
    while True:
        row, number = Rows([], [], [], []), 0
        while len(row.ids) < length:
            ids, labels = next(several)
            for whole, part in zip(row, (ids, range(len(ids)), [number] * len(ids), labels), strict=True):
                whole += part
            number += 1
        yield Rows(*(whole[:length] for whole in row))


def batches_of(several: Iterator[tuple[list[int], list[int]]], sizes: tuple[int, int, int]) -> dict[str, Tensor]:
    """Tensors of ``sizes`` (steps, rows, length) by the name of the field of ``Rows``."""
    steps, rows, length = sizes
    filled = packed(several, length)
    drawn = [next(filled) for _ in range(steps * rows)]
    return {name: torch.tensor([getattr(row, name) for row in drawn]).view(sizes) for name in Rows._fields}


class Measured(NamedTuple):
    """Seconds and loss of each step, and peak memory in GB."""

    seconds: list[float]
    losses: list[float]
    peak: float


def measured(name: str, source: Path, file: Path) -> Measured:
    """Run a side in a fresh process. Raises ``Died`` if it ends before its last line."""
    side = SIDES[name]
    constants = "".join(f"{key} = {value!r}\n" for key, value in side.constants.items())
    command = [sys.executable, "-c", f"{constants}{COMMON}{side.code}", str(source), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip().rpartition("\n")[2], file=sys.stderr)
        raise Died(name, done.returncode)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def row_of(name: str, turns: list[Measured], batches: Mapping[str, Tensor]) -> list[str]:
    """Row of the table."""
    step = median(seconds for turn in turns for seconds in turn.seconds[NOT_TIMED:] or turn.seconds)
    count, tokens, targets = len(batches["ids"]), batches["ids"].numel(), int((batches["labels"] != IGNORED).sum())
    rates = (f"{each / count / step:.0f}" for each in (tokens, targets))
    first, *_, last = turns[-1].losses
    return [name, f"{step:.2f}", *rates, f"{max(turn.peak for turn in turns):.2f}", f"{first:.4f}", f"{last:.3f}"]


def rows_of(names: list[str], source: Path, batches: Mapping[str, Tensor], repeats: int) -> list[list[str]]:
    """Run the sides in turns; rows of the table."""
    found, died = dict[str, list[Measured]](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "batches.safetensors")
        save_file(dict(batches), file)
        runs = {name: partial(measured, name, source, file) for name in names}
        for _ in range(repeats):
            results = living(lambda live: {name: run() for name, run in live.items()}, runs, died)
            for side, result in results.items():
                found.setdefault(side, []).append(result)
    return [row_of(name, found[name], batches) if name not in died else [name, died[name], *[""] * 5] for name in names]


def against(rows: list[list[str]]) -> str:
    """Sentence with the rate and the memory of each side of qkv as multiples of those of the peer."""
    figures = {row[0]: (float(row[2]), float(row[4])) for row in rows if row[2]}
    said = []
    for peer in (name for name in figures if name.startswith("peft")):
        ours = [name for name in figures if name not in (peer, *(n for n in figures if n.startswith("peft")))]
        parts = (
            f"{name.removeprefix('qkv, ')} {figures[name][0] / figures[peer][0]:.2f} × the rate and "
            f"{figures[name][1] / figures[peer][1]:.2f} × the memory"
            for name in ours
        )
        said.append(f"Against {peer}: {'; '.join(parts)}.")
    return " ".join(said)


def main() -> None:
    """Measure, print and write the table."""
    options = parser(__doc__ or "")
    options.add_argument("--model", type=Path, help="a GGUF file or a folder; default: a random Llama")
    options.add_argument("--rows", type=int, default=2, help="rows of a batch")
    options.add_argument("--length", type=int, default=512, help="tokens of a row")
    options.add_argument("--steps", type=int, default=6, help="steps of a side")
    options.add_argument("--only", nargs="+", choices=list(SIDES), default=list(SIDES), help="sides")
    options.add_argument("--write", type=Path, help="page whose table is written; it is made if it is missing")
    options.set_defaults(repeats=1)
    asked = options.parse_args()
    say_where("transformers", "peft")
    peer = available("peft", "peft", not asked.smoke)
    names = [name for name in asked.only if peer or not name.startswith("peft")]
    sizes = (2, 1, 320) if asked.smoke else (asked.steps, asked.rows, asked.length)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "exported")
        several = written(asked.model, source, asked.smoke)
        batches = batches_of(several, sizes)
        rows = rows_of(names, source, batches, asked.repeats)
    print_table(f"\nLoRA, {sizes[1]} rows of {sizes[2]} tokens", COLUMNS, rows)
    said = against(rows)
    print(said)
    if asked.write:
        if not asked.write.exists():
            asked.write.write_text(PAGE, encoding="utf-8")
        write_table(asked.write, "lora: lora.py", COLUMNS, rows, said)


def written(model: Path | None, folder: Path, smoke: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Write the weights of ``model``, or random ones, to ``folder`` in fp32; conversations for them."""
    rng = random.Random(1)
    if model is None:
        spec = llama(64, 2, 300) if smoke else llama(576, 30, 49152)
        save_published(build(spec, seed=1).eval(), folder)
        return noise(spec.vocab_size or 0, rng)
    published = load_published(model, "fp32")
    if published.tokenizer is None:
        raise SystemExit(f"{model} has no tokenizer")
    save_published(published.model, folder, published.tokenizer)
    return talks(find_template(published.tokenizer), rng)


if __name__ == "__main__":
    main()
