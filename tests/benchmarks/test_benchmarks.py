"""Every benchmark runs in its smallest form, without peers, and says where it ran. Its figures are not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.inventory import assert_lists

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHARED = {
    "side_by_side",
    "gpt_models",
    "long_range_data",
    "decode_peers",
    "peer_process",
    "family_checkpoints",
    "family_images",
    "family_sizes",
    "family_sounds",
}
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)

PRINTS: dict[str, tuple[str, ...]] = {
    "chat_training": ("before", "trained, seed 1", "exported GGUF file, q8_0", "accuracy", "tokens of an answer"),
    "captions": (
        "captions of the test split",
        "group, %",
        "nearest training picture",
        "concatenated",
        "Flamingo",
        "adapted",
    ),
    "codec": ("codecs", "scalar", "residual", "digits", "recordings", "said by the model"),
    "contours": ("shapes, intersection over union", "difference from uniform", "64"),
    "capture": ("outputs of a head read", "token after", "plain, after a capture"),
    "context_parallel": ("a training pass on a row of 64 positions", "ring", "heads", "state", "off by"),
    "attention": ("causal attention", "chosen", "ratio chosen / torch sdpa"),
    "decode": (
        "left out: transformers",
        "batch 32",
        "first token after a prompt of 512, fp32",
        "first token after a prompt of 512, bf16",
        "int8, batch 8",
        "int4, batch 8",
    ),
    "encode": ("left out: onnxruntime", "BERT-base, 8 × 128, fp32", "ViT-B/16, batch 8, 224 × 224, bf16"),
    "defaults": ("default and strong baseline", "strong baseline", "kept (runs)", "rings"),
    "estimates": ("performer", "exponent", "orthogonal", "hyper", "mean of the values", "speed, 64 samples"),
    "families": (
        "gpt2",
        "equal",
        "bert",
        "equal",
        "wav2vec2",
        "equal",
        "dac",
        "waveform",
        "model types by verdict",
        "Variants",
    ),
    "finetuning": ("accuracy on the test split", "unmerged", "lora", "whole", "the table and the curves are in"),
    "graphs": ("classification of graphs and nodes", "chosen", "logistic regression on tags"),
    "gpu": ("training, bf16, cpu", "utilisation", "attention, bf16", "FlexAttention", "decoding, bf16"),
    "growth": ("exponents of the number N of positions", "exact attention", "linear attention"),
    "induction": (
        "attention only, layers: 1: trained",
        "never above 0.5",
        "attention only, layers: 2: trained",
        "induction over checkpoints",
        "highest score of each role",
        "previous token",
        "no-op",
    ),
    "health": ("text, seed 1", "planted faults and good runs", "one bad batch", "recall", "precision"),
    "image_mixers": ("mixers on images", "parameters", "MLP-Mixer"),
    "forecast": ("published", "automatic choice", "normalised DLinear", "coverage of 80 %", "patches without times"),
    "length": ("nats a character by length of the row", "learned vectors", "refused", "RoPE", "YaRN"),
    "linear": ("native kernel", "one row / sum", "GFLOP/s", "chosen", "GB/s of weights"),
    "load_checkpoint": ("Llama, seconds", "peak / weights", "qkv", "GPT-2, seconds"),
    "lora": ("left out: peft", "LoRA, 1 rows of 320 tokens", "qkv, fp32", "qkv, 4 bits"),
    "long_prompt": ("a prompt of 96 tokens", "longest pause", "2 of 2 wrote the same tokens"),
    "long_range": ("mixers on long rows", "most frequent label", "linear attention", "60 rows for training"),
    "own_tables": ("defaults on tables", "kept (runs)", "sum of values", "rmse"),
    "narrow": (
        "left out: transformers",
        "left out: llama.cpp",
        "GGUF",
        "experts in bf16",
        "experts in MXFP4",
        "in Q4_0",
    ),
    "parallel": ("several processes beside one", "2 × 1", "1 allreduce", "1 × 2", "yes"),
    "pages": ("a decoding step", "1 × 40 + 1 × 3", "a row leaves", "4 requests that begin with the same 40 tokens"),
    "products": ("fp32 products, GFLOP/s", "MKL, packed", "oneDNN operator", "chosen", "inference"),
    "proteins": ("location of proteins", "most frequent location", "composition", "val"),
    "recall_at_distance": (
        "recall by distance",
        "accuracy",
        "separate models",
        "gradient before",
        "gradient after",
        "the curves are in",
    ),
    "particles": ("time at which half of the pairs are one", "theorem", "clusters left"),
    "subleq": ("random programs", "4 of 4", "exactness by sharpness", "16 of 16", "trained", "4 of 4"),
    "requests": (
        "left out: transformers",
        "6 requests",
        "qkv, one by one",
        "6 of 6 texts",
        "shared beginning",
        "prefixes kept",
    ),
    "speculate": (
        "a text that repeats itself",
        "look-up 8",
        "identical tokens",
        "draft 4",
        "identical tokens",
        "noise, drawn from random weights",
        "identical tokens",
    ),
    "doors": ("run in 4 bits", "share of the rate in memory", "First answer of a fresh server"),
    "extraction": (),
    "scales": ("accuracy on signals", "whole row", "1, 4, 16", "window of 8"),
    "serving": ("4 clients", "lost", "0", "requests by kind", "picture", "streamed"),
    "first_token": ("fresh process to its first token", "qkv", "ratio: none"),
    "speech_recognition": ("recognition of speech", "digits", "greedy", "6-grams", "after contrastive pretraining"),
    "shared_encoder": ("one encoder behind several front ends", "frozen, of the texts", "sound"),
    "any_with_any": ("qkv search", "digits found", "sound with text", "image with text", "sound with image"),
    "mixed_table": ("accuracy on the test part", "best baseline", "numbers and category"),
    "spoken_digits": ("accuracy on spoken digits", "official takes", "low"),
    "startup": ("import qkv", "qkv --help"),
    "time_to_loss": ("left out: nanoGPT", "loss over the whole validation split", "qkv fast"),
    "transcription": ("Whisper tiny, fp32", "qkv", "Whisper tiny, int8", "memory over a sound", "62 s"),
    "translation": ("German to English", "BLEU tokenized", "nrefs:1", "the table and the curves are in"),
    "train_step": ("left out: nanoGPT", "fp32", "bf16", "ratio: none"),
}
"""Parts of what each prints, in order."""


def run(script: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", str(script), *options]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, encoding="utf-8", cwd=folder, env=environment, timeout=120
    )


def test_every_benchmark_is_run() -> None:
    assert_lists("tests/benchmarks/test_benchmarks.py, PRINTS", PRINTS, (path.stem for path in SCRIPTS))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark(script: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log\n" * 60)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\n" + "a b c\tone two three\n" * 40)
    rated = tmp_path / "rated.csv"
    rated.write_text("sentence,label\n" + "a good film,1\na bad film,0\n" * 40)
    data = {
        "finetuning": ("--data", str(rated), "--only", "lora", "whole"),
        "length": ("--data", str(text)),
        "recall_at_distance": ("--alone", "--only", "attention", "rnn"),
        "time_to_loss": ("--data", str(text)),
        "translation": ("--data", str(pairs), "--quick", "--only", "gru_fixed"),
    }
    done = run(script, tmp_path, "--smoke", "--repeats", "1", *data.get(script.stem, ()))
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for part in ("machine ", "versions ", "date ", *PRINTS[script.stem]):
        assert part in rest, f"{script.name} should print {part!r} after what came before it, but left {rest!r}"
        rest = rest[rest.index(part) + len(part) :]


@pytest.mark.parametrize("name", ["train_step", "time_to_loss"])
def test_a_folder_that_is_no_checkout_gets_a_sentence(name: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 100)
    data = ("--data", str(text)) if name == "time_to_loss" else ()
    done = run(ROOT / "benchmarks" / f"{name}.py", tmp_path, "--smoke", "--nanogpt", str(tmp_path), *data)
    assert done.returncode == 1
    assert "has no model.py; give the folder of a nanoGPT checkout" in done.stderr
    assert "Traceback" not in done.stderr
