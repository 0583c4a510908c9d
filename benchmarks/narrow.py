"""Benchmark of narrow weights as people hold them: a quantised GGUF file, and mixtures of experts of 2 GB in bf16.

    python benchmarks/narrow.py --model SmolLM2.gguf --write benchmarks/results/narrow.md

    GGUF file     as it is: qkv and llama.cpp; exported in bf16: transformers. Without ``--model``: a random Llama, Q4_0
    experts       gpt-oss with random weights, a folder in bf16 and one with experts in MXFP4: qkv and transformers;
                  Qwen3-MoE of the same size, a GGUF file in Q4_0: qkv and llama.cpp

A fresh process loads the weights and writes tokens greedily after a prompt of 32. The table has the medians of seconds
from the start of the process to its first token, and of tokens per second after it, and the highest peak of memory.
Sides take turns. The weights are in the system's cache, and kernels are chosen and built, by a first run of each side.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

import qkv
from load_checkpoint import llama
from peer_process import Died, living
from qkv.interop.gguf.write import save_gguf
from qkv.interop.load import described, load_published
from qkv.interop.save import published_tensors, save_published
from qkv.models.build import build
from qkv.report.table import print_table
from qkv.system.processor import processor_name
from side_by_side import available, parser, say_where, version, write_table

PROMPT = list(range(1, 33))
COMMON = """
import json, re, sys, time
from pathlib import Path
new = int(sys.argv[2])

def measure(write):
    write(1)
    print("first", flush=True)
    if write(new) != new:
        sys.exit(f"fewer than {new} tokens")
    seconds = []
    for count in (1, new):
        start = time.perf_counter()
        write(count)
        seconds.append(time.perf_counter() - start)
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    rate = (new - 1) / max(seconds[1] - seconds[0], 1e-9)
    print(json.dumps({"peak": peak / 1e6, "rate": rate}), flush=True)
"""
SIDES = {
    "qkv": """
import qkv
from qkv.generation.decode.sample import generate
model = qkv.load(sys.argv[1]).model.eval()
measure(lambda count: len(generate(model, [PROMPT], qkv.Generation(max_new_tokens=count, temperature=0.0))[0]))
""",
    "llama.cpp": """
import os
from qkv.interop.gguf.peer import LlamaCpp
model = LlamaCpp(Path(sys.argv[1]), int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count()))
measure(lambda count: len(model.generate([PROMPT], count)[0]))
""",
    "transformers": """
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
logging.disable_progress_bar()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.tensor([PROMPT])
with torch.inference_mode():
    measure(lambda count: model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=count, max_new_tokens=count
    ).shape[1] - len(PROMPT))
""",
}
PAGE = """# Narrow weights

Start to the first token, memory and rate of quantised weights in fresh processes.
[narrow.py](../narrow.py) measures and writes this page.

<!-- table narrow: narrow.py -->
<!-- end of table narrow -->
"""
COLUMNS = ["weights", "side", "on disk, GB", "first token, s", "peak memory, GB", "tokens/s"]


class Subject(NamedTuple):
    """Weights on disk by the side that reads them."""

    name: str
    places: Mapping[str, Path]


class Measured(NamedTuple):
    """Seconds to the first token, peak memory in GB, and tokens per second."""

    first: float
    peak: float
    rate: float


def measured(side: str, place: Path, new: int) -> Measured:
    """Run a side in a fresh process. Raises ``Died`` if it ends before its last line."""
    code = f"PROMPT = {PROMPT}\n{COMMON}{SIDES[side]}"
    start = time.perf_counter()
    command = [sys.executable, "-c", code, str(place), str(new)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = process.stdout.readline()
        first = time.perf_counter() - start
        rest = process.stdout.readline()
        if not begun or not rest:
            print(process.stderr.read().strip().rpartition("\n")[2], file=sys.stderr)
            raise Died(side, process.wait())
    found = json.loads(rest)
    return Measured(first, found["peak"], found["rate"])


def gguf_subject(model: Path | None, folder: Path, sides: list[str], smoke: bool) -> Subject:
    """The GGUF file ``model``, or a random Llama in Q4_0, and for transformers its export in bf16."""
    file = model or folder / "random-llama-q4_0.gguf"
    if model is None:
        save_gguf(build(llama(128, 1, 300) if smoke else llama(768, 12, 32000)).eval(), file, dtype="q4_0")
    places = {side: file for side in sides}
    if "transformers" in sides:
        places["transformers"] = folder / "exported"
        save_published(load_published(file, "bf16").model, places["transformers"])
    return Subject(f"{file.stem}, GGUF", places)


def experts_config(smoke: bool, stem: str) -> dict[str, Any]:
    """``config.json`` of gpt-oss, or of Qwen3-MoE, with a billion weights."""
    width, layers, vocab_size, experts = (64, 2, 300, 4) if smoke else (1024, 9, 32000, 32)
    return {
        "model_type": {"GptOss": "gpt_oss", "Qwen3Moe": "qwen3_moe"}[stem],
        "architectures": [f"{stem}ForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": 2,
        "head_dim": 32,
        **({"num_local_experts": experts} if stem == "GptOss" else {"num_experts": experts, "norm_topk_prob": True}),
        **({} if stem == "GptOss" else {"moe_intermediate_size": width}),
        "num_experts_per_tok": 4 if experts > 4 else 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def write_experts(folder: Path, smoke: bool, narrow: bool, stem: str = "GptOss") -> Path:
    """Write a folder of random weights in bf16, with experts in MXFP4 if ``narrow``."""
    config = experts_config(smoke, stem)
    if narrow:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    model, family, architecture = described(folder)
    generator, tensors = torch.Generator().manual_seed(1), dict[str, Tensor]()
    for name, blank in published_tensors(model, family, architecture).items():
        if narrow and name.endswith(("gate_up_proj", "down_proj")):
            experts, inner, outer = blank.shape
            shape = (experts, outer, inner // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.full(shape, 120, dtype=torch.uint8)
        else:
            scale = 1.0 if name.endswith("norm.weight") else 0.02
            tensors[name] = (torch.randn(blank.shape, generator=generator) * scale).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def experts_file(folder: Path, smoke: bool) -> Path:
    """Write a GGUF file of experts in Q4_0."""
    model = load_published(write_experts(folder / "wide", smoke, False, "Qwen3Moe"), "bf16").model
    save_gguf(model, folder / "experts.gguf", dtype="q4_0")
    return folder / "experts.gguf"


def note(new: int) -> str:
    """Sentence below the table: machine, date and versions."""
    packages = ("torch", "transformers", "llama-cpp-python")
    versions = ", ".join(f"{name} {version(name) or '(not installed)'}" for name in packages)
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"{processor_name()}, {date}; qkv {qkv.__version__}, {versions}. {new} tokens after a prompt of {len(PROMPT)}."
    )


def size_of(place: Path) -> float:
    """Size of a file, or of the weights in a folder, in GB."""
    files = [place] if place.is_file() else list(place.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) / 1e9


def rows_of(subject: Subject, new: int, turns: int) -> list[list[str]]:
    """Run the sides in turns; return rows of the table, without the first of several turns."""
    found: dict[str, list[Measured]] = {}
    died = dict[str, str]()
    runs = {side: partial(measured, side, place, new) for side, place in subject.places.items()}
    for turn in range(turns):
        results = living(lambda live: {side: run() for side, run in live.items()}, runs, died)
        for side in results if turn or turns == 1 else ():
            found.setdefault(side, []).append(results[side])
    rows = []
    for side, place in subject.places.items():
        head = [subject.name, side, f"{size_of(place):.2f}"]
        if side in died:
            rows.append([*head, died[side], "", ""])
            continue
        firsts, peaks, rates = zip(*found[side], strict=True)
        rows.append([*head, f"{median(firsts):.2f}", f"{max(peaks):.2f}", f"{median(rates):.1f}"])
    return rows


def main() -> None:
    """Measure, print and write the table."""
    options = parser(__doc__ or "")
    options.add_argument("--model", type=Path, help="a GGUF file; default: a random Llama in Q4_0")
    options.add_argument("--new", type=int, default=64, help="tokens of a text")
    options.add_argument("--write", type=Path, help="page whose table is written; it is made if it is missing")
    options.set_defaults(repeats=3)
    asked = options.parse_args()
    say_where("transformers", "llama-cpp-python")
    new, turns = (4, 1) if asked.smoke else (asked.new, asked.repeats + 1)
    hf = ["transformers"] if available("transformers", "transformers", not asked.smoke) else []
    cpp = ["llama.cpp"] if available("llama.cpp", "llama_cpp", not asked.smoke) else []
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        subject = gguf_subject(asked.model, Path(name), ["qkv", *cpp, *hf], asked.smoke)
        rows += rows_of(subject, new, turns)
    for title, narrow in (("experts in bf16", False), ("experts in MXFP4", True)):
        with tempfile.TemporaryDirectory() as name:
            folder = write_experts(Path(name, "experts"), asked.smoke, narrow)
            rows += rows_of(Subject(title, dict.fromkeys(["qkv", *hf], folder)), new, turns)
    with tempfile.TemporaryDirectory() as name:
        file = experts_file(Path(name), asked.smoke)
        rows += rows_of(Subject("experts in Q4_0, GGUF", dict.fromkeys(["qkv", *cpp], file)), new, turns)
    print_table("\nnarrow weights, fresh processes", COLUMNS, rows)
    if asked.write:
        if not asked.write.exists():
            asked.write.write_text(PAGE, encoding="utf-8")
        write_table(asked.write, "narrow: narrow.py", COLUMNS, rows, note(new))


if __name__ == "__main__":
    main()
