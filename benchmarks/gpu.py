"""Benchmark on a GPU, written to docs/gpu.md: training, attention and decoding in bf16, each beside its peers.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --only attention --repeats 9

Without a GPU the tables keep their rows with empty cells. ``--smoke`` runs the same code on tiny sizes, also on a
processor, prints its tables and leaves the page as it is.

Utilisation is FLOPs per second over those of a product of two bf16 matrices of 8,192 × 8,192, measured in the same run.
A token of training has 6 P + 12 L D N FLOPs for P weights, L layers of width D and N positions (Chowdhery et al. 2022).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attention
from decode import build_qkv, prompts
from gpt_models import Size, qkv_gpt, transformers_gpt
from qkv.report.table import print_table
from qkv.runs.bench.sides import Writer, other_model, other_writer, writer
from side_by_side import Times, available, in_turns, parser, say_where, version, write_table
from train_step import step_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpu.md"
GPT2 = Size("GPT-2 124M", 12, 768, 12, 1024, 16, 50304)
SMOKE = Size("smoke", 1, 32, 2, 16, 2)
LENGTHS = (1024, 4096, 16384)
BATCHES, PROMPT, NEW = (1, 8, 32), 32, 128
SIDES = {
    "training": ("qkv", "qkv, compiled", "transformers", "transformers, compiled"),
    "attention": ("sdpa", "FlexAttention, compiled", "qkv"),
    "decoding": ("qkv", "qkv, CUDA graph", "transformers", "transformers, compiled"),
}
Sides = Mapping[str, Callable[[], object]]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--device", help="default: the accelerator, if there is one")
    options.add_argument("--only", nargs="+", choices=list(SIDES), default=list(SIDES))
    return options.parse_args()


def timed(sides: Sides, device: str, repeats: int, warm_up: int = 3) -> dict[str, Times]:
    """Times of all sides in turns, each until the device has finished, after ``warm_up`` calls of each."""

    def finished(run: Callable[[], object]) -> None:
        run()
        if device != "cpu":
            torch.accelerator.synchronize()

    return in_turns({name: partial(finished, run) for name, run in sides.items()}, repeats, warm_up=warm_up)


def peak(device: str, size: int, repeats: int) -> float:
    """FLOPs per second of a product of two bf16 matrices (size, size)."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / timed({"product": lambda: a @ b}, device, repeats)["product"].best


def flops(size: Size) -> float:
    """FLOPs of a training step per token, see the module's formula."""
    weights = sum(parameter.numel() for parameter in qkv_gpt(size)[0].parameters())
    return 6 * weights + 12 * size.layers * size.width * size.context


def training(device: str, smoke: bool, repeats: int) -> list[list[str]]:
    """Rows (side, tokens/s, utilisation) of updates in bf16."""
    size = SMOKE if smoke else GPT2
    sides: dict[str, Callable[[], object]] = {"qkv": step_of(qkv_gpt, size, True, False, device)}
    if not smoke:
        sides["qkv, compiled"] = step_of(qkv_gpt, size, True, True, device)
        if available("transformers", "transformers"):
            sides["transformers"] = step_of(transformers_gpt, size, True, False, device)
            sides["transformers, compiled"] = step_of(transformers_gpt, size, True, True, device)
    rate, cost = peak(device, 256 if smoke else 8192, repeats), flops(size)
    found = {name: size.tokens / t.best for name, t in timed(sides, device, repeats).items()}
    return [[name, f"{speed:,.0f}", f"{speed * cost / rate:.0%}"] for name, speed in found.items()]


def flex(mask_name: str, length: int, device: str) -> attention.Run:
    """FlexAttention with a block mask, compiled."""

    def visible(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        causal = query >= key
        return causal if mask_name == "causal" else causal & (query - key < attention.WINDOW)

    mask = create_block_mask(visible, None, None, length, length, device=device)
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)  # type: ignore[return-value]


def attentions(device: str, smoke: bool, repeats: int) -> list[list[str]]:
    """Rows (mask, direction, length, ms of each side) of eight heads of 64 in bf16."""
    rows = []
    for mask_name, mask in attention.masks("both").items():
        for direction in ("forward", "forward and backward"):
            for length in (64,) if smoke else LENGTHS:
                runs = attention.sides(mask_name, mask, length, torch.bfloat16, device)
                chosen = {"qkv": runs["chosen"]} | ({"sdpa": runs[attention.PEER]} if attention.PEER in runs else {})
                if device != "cpu":
                    chosen[SIDES["attention"][1]] = flex(mask_name, length, device)
                found = _milliseconds(chosen, length, direction != "forward", device, repeats)
                rows.append(
                    [mask_name, direction, f"{length:,}", *(found.get(name, "") for name in SIDES["attention"])]
                )
    return rows


def _milliseconds(
    runs: Mapping[str, attention.Run], length: int, training: bool, device: str, repeats: int
) -> dict[str, str]:
    q, k, v = (
        torch.randn(1, attention.HEADS, length, attention.DIM, device=device, dtype=torch.bfloat16).requires_grad_(
            training
        )
        for _ in range(3)
    )
    sides = {name: attention.timed(run, (q, k, v), training) for name, run in runs.items()}
    times = timed({name: run for name, run in sides.items() if attention.works(run)}, device, repeats)
    return {name: f"{t.best * 1e3:.3f}" for name, t in times.items()}


def part_by_part(write: Writer) -> Writer:
    """``write`` without CUDA graphs."""

    def run(texts: list[list[int]], new: int) -> object:
        os.environ["QKV_WITHOUT"] = "graphs"
        try:
            return write(texts, new)
        finally:
            del os.environ["QKV_WITHOUT"]

    return run


def decoding(device: str, smoke: bool, repeats: int) -> list[list[str]]:
    """Rows (batch, tokens/s of each side) of greedy generation in bf16."""
    model = build_qkv("gpt2", smoke)
    theirs = other_model(model) if not smoke and available("transformers", "transformers") else None
    models = {"qkv": part_by_part(writer(model.bfloat16().to(device)))}
    if device.startswith("cuda"):
        models["qkv, CUDA graph"] = writer(model)
    if theirs is not None:
        models["transformers"] = other_writer(theirs.bfloat16().to(device))
        if device.startswith("cuda"):  # where the library compiles the steps of a cache of fixed size
            models["transformers, compiled"] = other_writer(theirs, cache_implementation="static")
    new, rows = 4 if smoke else NEW, []
    for batch in (1,) if smoke else BATCHES:
        texts = prompts(batch, PROMPT, model.vocab_size or 0)
        times = timed({name: partial(write, texts, new) for name, write in models.items()}, device, repeats, 1)
        cells = [f"{batch * new / times[name].best:,.0f}" if name in times else "" for name in SIDES["decoding"]]
        rows.append([str(batch), *cells])
    return rows


PARTS = {"training": training, "attention": attentions, "decoding": decoding}
COLUMNS = {
    "training": ["side", "tokens/s", "utilisation"],
    "attention": ["mask", "direction", "positions", *(f"{name}, ms" for name in SIDES["attention"])],
    "decoding": ["batch", *(f"{name}, tokens/s" for name in SIDES["decoding"])],
}


def empty(part: str) -> list[list[str]]:
    """Rows of a table without measurements."""
    if part == "training":
        return [[name, "", ""] for name in SIDES[part]]
    if part == "decoding":
        return [[str(batch), *[""] * len(SIDES[part])] for batch in BATCHES]
    directions = ("forward", "forward and backward")
    keys = [[name, way, f"{n:,}"] for name in attention.masks("both") for way in directions for n in LENGTHS]
    return [[*key, *[""] * len(SIDES[part])] for key in keys]


def where(device: str) -> str:
    """Sentence on the machine and versions below a table."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return f"{name}, torch {version('torch')}, transformers {version('transformers') or 'not installed'}."


def main() -> None:
    """Measure the selected parts and write their tables."""
    asked = arguments()
    found = torch.accelerator.current_accelerator(check_available=True)
    device = asked.device or (found.type if found is not None else "cpu" * asked.smoke)
    say_where("transformers")
    for part in asked.only:
        rows = PARTS[part](device, asked.smoke, asked.repeats) if device else empty(part)
        print_table(f"\n{part}, bf16, {device or 'no GPU'}", COLUMNS[part], rows)
        if not asked.smoke:
            write_table(
                PAGE,
                f"{part}: benchmarks/gpu.py",
                COLUMNS[part],
                rows,
                where(device) if device else "Not measured yet.",
            )


if __name__ == "__main__":
    main()
