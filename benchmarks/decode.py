"""Benchmark of greedy generation: tokens per second and time to first token, GPT-2 124M shape with random weights.

    python benchmarks/decode.py
    python benchmarks/decode.py --precision bf16 --batch 1 8

Each side uses its public ``generate``: qkv.generation, transformers (eager), CTranslate2 (converted from the
transformers model, fp32 only, since it has no bf16 kernels for most CPUs). In int8 and int4 qkv runs alone, with
weights quantised as by ``qkv quantize``; its bf16 is also measured so, with fp32 activations.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.models.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.ops.native import library
from qkv.report.table import print_table
from qkv.runs.bench.sides import BITS, Writer, other_writer, writer
from qkv.spec.quantization import Quantization
from side_by_side import available, compare, in_turns, parser, say_ratio, say_where

VOCAB, PROMPT, FIRST = 50257, 32, 512
OURS = ("qkv", "qkv, bf16 weights")
PRECISIONS = tuple(BITS)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.set_defaults(repeats=3)
    options.add_argument("--precision", choices=PRECISIONS, nargs="*", default=list(PRECISIONS))
    options.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32], help="none: only the first token")
    options.add_argument("--new", type=int, default=128, help="number of tokens to generate")
    options.add_argument("--no-first", action="store_true", help="skip time to first token (prompt of 512)")
    return options.parse_args()


def build_qkv(smoke: bool) -> Transformer:
    """GPT-2 with random weights, or for a smoke test a tiny one."""
    width, layers, heads = (32, 1, 2) if smoke else (768, 12, 12)
    branches = [f"attention({heads})", "feed_forward(activation=gelu_tanh)"]
    frontend = {"kind": "text", "vocab_size": 128 if smoke else VOCAB}
    sizes = {"width": width, "num_layers": layers, "context_length": 1024}
    return qkv.build(qkv.Model.parse({**sizes, "frontend": frontend, "blocks": [{"branches": branches}]})).eval()


def qkv_side(bf16: bool, smoke: bool, bits: int = 32) -> Writer:
    """qkv's own ``generate`` with a state of fixed capacity. bits: of quantised weights; 32: not quantised."""
    model = build_qkv(smoke)
    model = model.bfloat16() if bf16 else model
    if bits < 32:
        quantize(model, Quantization.parse({"bits": bits}))
    return writer(model)


def transformers_model() -> Any:
    """GPT-2 with random weights in fp32."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).eval()


def transformers_side(bf16: bool) -> Writer:
    """``model.generate``, eager, with its key/value cache and without an end token."""
    model = transformers_model()
    return other_writer(model.bfloat16() if bf16 else model)


@contextlib.contextmanager
def ctranslate2_side() -> Iterator[Writer]:
    """CTranslate2's generator in fp32, with as many threads as torch, in a separate process.

    In a common process, the OpenMP library shared with torch counts more threads than processors and stops torch's
    threads from spinning between products: qkv then generates 45 tokens/s instead of 54.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_ctranslate2, args=(there, torch.get_num_threads()), daemon=True)
    process.start()

    def run(prompts: list[list[int]], new: int) -> object:
        here.send((prompts, new))
        found = here.recv()
        assert found == [new] * len(prompts)
        return found

    assert here.recv() == "ready"
    try:
        yield run
    finally:
        process.terminate()
        process.join()


def _ctranslate2(pipe: Connection, threads: int) -> None:
    """Worker: reply to each (prompts, new) with the number of tokens generated per prompt."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        source, converted = Path(folder) / "transformers", Path(folder) / "converted"
        transformers_model().save_pretrained(source)
        _tokenizer(source)
        ctranslate2.converters.TransformersConverter(str(source)).convert(str(converted))
        generator = ctranslate2.Generator(str(converted), device="cpu", compute_type="float32", intra_threads=threads)
    pipe.send("ready")
    while True:
        prompts, new = pipe.recv()
        tokens = [[f"t{i}" for i in prompt] for prompt in prompts]
        options = {"max_length": new, "min_length": new, "include_prompt_in_result": False, "max_batch_size": 0}
        pipe.send([len(result.sequences_ids[0]) for result in generator.generate_batch(tokens, **options)])


def _tokenizer(folder: Path) -> None:
    """Write a tokenizer of the model's vocabulary size, which the converter requires."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    last = f"t{VOCAB - 1}"
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token=last, bos_token=last, eos_token=last).save_pretrained(
        folder
    )


@contextlib.contextmanager
def sides(precision: str, smoke: bool) -> Iterator[dict[str, Writer]]:
    """Libraries to compare at this precision."""
    bf16 = precision == "bf16"
    with contextlib.ExitStack() as stack:
        if precision in ("int8", "int4"):
            yield {"qkv": qkv_side(False, smoke, BITS[precision])}
            return
        found: dict[str, Writer] = {"qkv": qkv_side(bf16, smoke)}
        if bf16:
            found[OURS[1]] = qkv_side(False, smoke, BITS[precision])
        if available("transformers", "transformers", not smoke):
            found["transformers"] = transformers_side(bf16)
            if not bf16 and available("CTranslate2", "ctranslate2"):
                found["CTranslate2"] = stack.enter_context(ctranslate2_side())
        yield found


def prompts(batch: int, length: int, smoke: bool) -> list[list[int]]:
    """Random tokens, the same in every call."""
    drawn = torch.randint(
        0, 128 if smoke else VOCAB - 1, (batch, length), generator=torch.Generator().manual_seed(batch)
    )
    return drawn.tolist()


def measure(precision: str, asked: argparse.Namespace) -> None:
    """Measure every batch size, then time to first token, at one precision."""
    new = 4 if asked.smoke else asked.new
    with sides(precision, asked.smoke) as runs:
        for batch in asked.batch:
            texts = prompts(batch, PROMPT, asked.smoke)
            for run in runs.values():
                run(texts, 4)
            times = in_turns({name: partial(run, texts, new) for name, run in runs.items()}, asked.repeats, warm_up=0)
            compare(
                f"decoding, GPT-2 124M shape, {precision}, batch {batch}, prompt {PROMPT}, {new} new",
                "tokens/s",
                batch * new,
                times,
                OURS,
            )
        if not asked.no_first:
            first_token(precision, runs, asked)


def first_token(precision: str, runs: dict[str, Writer], asked: argparse.Namespace) -> None:
    """Time to first token after a prompt of 512 tokens, in seconds."""
    texts = prompts(1, FIRST, asked.smoke)
    times = in_turns({name: partial(run, texts, 1) for name, run in runs.items()}, asked.repeats)
    rows = [(name, round(t.best, 4), round(t.middle, 4), f"{t.spread:.0%}") for name, t in times.items()]
    print_table(
        f"\nfirst token after a prompt of {FIRST}, {precision}", ["side", "seconds, best", "median", "spread"], rows
    )
    say_ratio({name: t.best for name, t in times.items()}, OURS)


def main() -> None:
    """Run every selected precision."""
    asked = arguments()
    say_where("transformers", "ctranslate2")
    print(f"native kernel: {library.described()}")
    for precision in asked.precision:
        measure(precision, asked)


if __name__ == "__main__":
    main()
