"""Benchmark of greedy generation: tokens per second and time to first token, models with random weights.

    python benchmarks/decode.py
    python benchmarks/decode.py --model llama --precision bf16 --batch 1 8 --write benchmarks/results/decode.md

Every side has the same weights, which qkv draws and exports, and uses its own ``generate``: qkv, transformers (eager),
CTranslate2 (fp32 and int8; it has no bf16 kernels for most CPUs) and llama.cpp (through llama-cpp-python, from a GGUF
file that qkv writes; int8 is Q8_0 and int4 Q4_0, with keys and values in fp16, its default). In int8 and int4 qkv has
weights quantised as by ``qkv quantize``; its bf16 is also measured so. In fp32 the tokens of the
sides are compared.

A peer that was built for other instructions is taken from a folder, ``--peers FOLDER``. To compare as on a processor
with AVX2 only:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 CT2_FORCE_CPU_ISA=AVX2 \\
        python benchmarks/decode.py --peers FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import torch

import qkv
from decode_peers import PEERS, Work, equal_rows, running, write_sources
from peer_process import Died, living
from qkv.models.edit.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.ops.native import library
from qkv.report.table import print_table
from qkv.runs.bench.sides import BITS, Writer, writer
from qkv.spec.models.quantization import Quantization
from qkv.system.processor import processor_name
from side_by_side import (
    Times,
    available,
    compare,
    in_turns,
    parser,
    say_ratio,
    say_where,
    version,
    with_rows_of,
    write_table,
)

PROMPT, FIRST = 32, 512
OURS = ("qkv", "qkv, bf16 weights")
PRECISIONS = tuple(BITS)
COLUMNS = ["model", "vectors", "precision", "batch", "qkv", *PEERS, "qkv / best peer", "date"]
KEYS = 4


def gpt2(width: int, layers: int, heads: int, vocab: int) -> dict[str, object]:
    """Spec of GPT-2's shape."""
    return {
        "width": width,
        "num_layers": layers,
        "context_length": 1024,
        "frontend": {"kind": "text", "vocab_size": vocab},
        "blocks": [{"branches": [f"attention({heads})", "feed_forward(activation=gelu_tanh)"]}],
    }


def llama(width: int, layers: int, heads: int, vocab: int) -> dict[str, object]:
    """Spec of Llama's shape with four query heads to a key head; 341 M weights with 24 layers of 1,024 features."""
    attention = {"kind": "attention", "num_heads": heads, "num_kv_heads": heads // 4, "bias": False, "relative": "rope"}
    hidden = {1024: 2880}.get(width, 3 * width)
    branches = [attention, {"kind": "gated_feed_forward", "hidden": hidden, "bias": False}]
    return {
        "width": width,
        "num_layers": layers,
        "context_length": 1024,
        "frontend": {"kind": "text", "vocab_size": vocab, "positions": "none"},
        "blocks": [{"branches": branches, "norm": "rms_norm"}],
        "norm": "rms_norm",
        "head": {"kind": "language_model", "tied": False},
    }


MODELS = {
    "gpt2": ("GPT-2 124M", partial(gpt2, 768, 12, 12, 50257)),
    "llama": ("Llama 341M", partial(llama, 1024, 24, 16, 32000)),
}
SMOKE = {"gpt2": partial(gpt2, 32, 1, 2, 128), "llama": partial(llama, 32, 1, 4, 128)}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.set_defaults(repeats=3)
    options.add_argument("--model", choices=MODELS, default="gpt2")
    options.add_argument("--precision", choices=PRECISIONS, nargs="*", default=list(PRECISIONS))
    options.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32], help="none: only the first token")
    options.add_argument("--new", type=int, default=128, help="number of tokens to generate")
    options.add_argument("--no-first", action="store_true", help="skip time to first token (prompt of 512)")
    options.add_argument("--peers", type=Path, help="folder with packages of peers, before those installed")
    options.add_argument("--write", type=Path, help="page whose tables get the rows")
    return options.parse_args()


def spec_of(model: str, smoke: bool) -> qkv.Model:
    """Spec of the model, or for a smoke test of a tiny one."""
    return qkv.Model.parse((SMOKE[model] if smoke else MODELS[model][1])())


def build_qkv(model: str, smoke: bool) -> Transformer:
    """Model with random weights, the same in every run."""
    torch.manual_seed(0)
    return qkv.build(spec_of(model, smoke)).eval()


def qkv_side(model: Transformer, bf16: bool, bits: int = 32) -> Writer:
    """qkv's own ``generate`` with a state of fixed capacity. bits: of quantised weights; 32: not quantised."""
    model = model.bfloat16() if bf16 else model
    if bits < 32:
        quantize(model, Quantization.parse({"bits": bits}))
    return writer(model)


@contextlib.contextmanager
def sides(precision: str, asked: argparse.Namespace, died: dict[str, str]) -> Iterator[dict[str, Writer]]:
    """Libraries to compare at this precision; peers run in processes of their own. died: those that die at their start,
    with how.
    """
    bf16, drawn = precision == "bf16", partial(build_qkv, asked.model, asked.smoke)
    found: dict[str, Writer] = {"qkv": qkv_side(drawn(), bf16, 32 if bf16 else BITS[precision])}
    if bf16:
        found[OURS[1]] = qkv_side(drawn(), False, BITS[precision])
    wanted = [name for name, peer in PEERS.items() if precision in peer.precisions and here(name, asked)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        longest = max(PROMPT + asked.new, 0 if asked.no_first else FIRST + 1)
        work = Work(folder, precision, torch.get_num_threads(), max(asked.batch, default=1), longest)
        if wanted:
            write_sources(drawn(), folder, precision)
        for name in wanted:
            try:
                found[name] = stack.enter_context(running(name, work, asked.peers))
            except RuntimeError as error:
                print(f"left out: {name} ({error})")
                if isinstance(error, Died):
                    died[name] = str(error)
        yield found


def here(name: str, asked: argparse.Namespace) -> bool:
    """True if a peer is in the folder of peers or installed; otherwise print the reason. A smoke run has none."""
    module = PEERS[name].module
    if asked.peers is not None and (asked.peers / module).is_dir():
        return available(name, "qkv", not asked.smoke)
    return available(name, module, not asked.smoke)


def prompts(batch: int, length: int, vocab: int) -> list[list[int]]:
    """Random tokens, the same in every call."""
    return torch.randint(0, vocab - 1, (batch, length), generator=torch.Generator().manual_seed(batch)).tolist()


def measure(precision: str, asked: argparse.Namespace) -> list[list[str]]:
    """Measure every batch size, then time to first token, at one precision; rows of the table."""
    new, rows, died = 4 if asked.smoke else asked.new, list[list[str]](), dict[str, str]()
    vocab = spec_of(asked.model, asked.smoke).vocab_size or 1
    name = MODELS[asked.model][0]
    with sides(precision, asked, died) as runs:
        for batch in asked.batch:
            texts = prompts(batch, PROMPT, vocab)
            written, times = living(lambda live, texts=texts: generated(live, texts, new, asked.repeats), runs, died)
            title = f"decoding, {name} shape, {precision}, batch {batch}, prompt {PROMPT}, {new} new"
            compare(title, "tokens/s", batch * new, times, OURS, died)
            if precision == "fp32" and len(written) > 1:
                same = {side: equal_rows(found, written["qkv"]) for side, found in written.items() if side != "qkv"}
                print("rows with qkv's tokens: " + ", ".join(f"{side} {k} of {batch}" for side, k in same.items()))
            rates = {side: batch * new / t.best for side, t in times.items()}
            rows.append(row(asked, precision, str(batch), rates, "{:,.0f}", died))
        if not asked.no_first:
            times = living(lambda live: first_token(precision, live, asked.repeats, vocab), runs, died)
            speeds = {side: -t.best for side, t in times.items()}
            rows.append(row(asked, precision, f"first of {FIRST}, s", speeds, "{:.3f}", died))
    return rows


def generated(
    runs: Mapping[str, Writer], texts: list[list[int]], new: int, repeats: int
) -> tuple[dict[str, list[list[int]]], dict[str, Times]]:
    """Tokens and times of each side."""
    written = {side: run(texts, new) for side, run in runs.items()}
    return written, in_turns({side: partial(run, texts, new) for side, run in runs.items()}, repeats, warm_up=0)


def row(
    asked: argparse.Namespace,
    precision: str,
    batch: str,
    found: dict[str, float],
    form: str,
    died: Mapping[str, str],
) -> list[str]:
    """Row of the table: figures of the sides, of which the highest is the best. Negative ones are seconds. died: how
    sides without a figure died.
    """
    own = max(found[side] for side in OURS if side in found)
    best = max((found[side] for side in PEERS if side in found), default=0.0)
    ratio = own / best if best > 0 else best / own
    cells = [form.format(abs(own)), *(form.format(abs(found[s])) if s in found else died.get(s, "") for s in PEERS)]
    vectors = torch.backends.cpu.get_cpu_capability()
    keys = [MODELS[asked.model][0], vectors, precision, batch]
    return [*keys, *cells, f"{ratio:.2f}" if best else "", f"{datetime.now(UTC):%Y-%m-%d %H:%M}"]


def first_token(precision: str, runs: Mapping[str, Writer], repeats: int, vocab: int) -> dict[str, Times]:
    """Time to first token after a prompt of 512 tokens, in seconds."""
    texts = prompts(1, FIRST, vocab)
    times = in_turns({name: partial(run, texts, 1) for name, run in runs.items()}, repeats)
    rows = [(name, round(t.best, 4), round(t.middle, 4), f"{t.spread:.0%}") for name, t in times.items()]
    print_table(
        f"\nfirst token after a prompt of {FIRST}, {precision}", ["side", "seconds, best", "median", "spread"], rows
    )
    say_ratio({name: t.best for name, t in times.items()}, OURS)
    return times


def note(packages: Path | None, new: int) -> str:
    """Sentence on machine and versions below the table."""
    names = ["torch", *(peer.package for peer in PEERS.values())]
    versions = [f"{name} {version(name) or version_in(packages, name) or '(not installed)'}" for name in names]
    where = f"{processor_name()}, {torch.get_num_threads()} of them used"
    return f"{where}; {new} new tokens; qkv {qkv.__version__}, {', '.join(versions)}."


def version_in(folder: Path | None, package: str) -> str | None:
    """Version of a package in a folder of packages; None if it is not there."""
    found = distributions(name=package, path=[str(folder)]) if folder is not None else ()
    return next((each.version for each in found), None)


def main() -> None:
    """Run every selected precision."""
    asked = arguments()
    say_where(*(peer.package for peer in PEERS.values()))
    print(f"native kernel: {library.described()}")
    for precision in asked.precision:
        rows = measure(precision, asked)
        if asked.write and not asked.smoke:
            name, below = "decode: benchmarks/decode.py", note(asked.peers, asked.new)
            write_table(asked.write, name, COLUMNS, with_rows_of(asked.write, name, rows, KEYS), below)


if __name__ == "__main__":
    main()
