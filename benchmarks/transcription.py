"""Benchmark of transcription: real-time factor and memory of Whisper's shapes with random weights.

    python benchmarks/transcription.py
    python benchmarks/transcription.py --size tiny --precision fp32
    python benchmarks/transcription.py --memory 60 600

The same weights on every side: transformers writes the folder, qkv opens it, and CTranslate2, on which faster-whisper
runs, converts it. Each side hears the same windows of 30 seconds and writes as many tokens of each, greedily; end
tokens are suppressed, so that every text is as long. The tokens are compared before anything is timed; in fp32 they are
equal. A real-time factor of 0.1 means that a second of sound takes 0.1 seconds. CTranslate2 runs in a process of its
own, with as many threads.

``--memory``: peak memory of qkv over sounds of these lengths in seconds, each in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peer_process import Died, living, process, serve
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.models.edit.quantize import quantize
from qkv.report.table import print_table
from qkv.runs.storage.load import load
from qkv.runs.transcription.transcribe import transcribe
from qkv.spec.models.quantization import Quantization
from side_by_side import available, in_turns, parser, say_ratio, say_where, with_rows_of, write_table

SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12)}
"""Width, layers of each stack, and heads."""
VOCABULARY, RATE, SECONDS = 51_865, 16_000, 30
START, ENGLISH, TRANSCRIBE, NO_TIMES, END = 50_258, 50_259, 50_359, 50_363, 50_257
"""Ids of Whisper's multilingual tokens."""
COMPUTE = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
SIDES = ("qkv", "CTranslate2", "transformers")
COLUMNS = ("model", "precision", *SIDES, "CTranslate2 / qkv", "best peer / qkv", "date")
MEMORY_COLUMNS = ("sound", "file, MiB", "peak of Python and NumPy, MiB", "growth of the process, MiB")
Hear = Callable[[int], list[list[int]]]
"""Number of new tokens -> tokens of each window."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--size", choices=tuple(SIZES), nargs="*", default=["tiny", "base"])
    options.add_argument("--precision", choices=tuple(COMPUTE), nargs="*", default=list(COMPUTE))
    options.add_argument("--windows", type=int, default=2, help="windows of 30 seconds")
    options.add_argument("--batch", type=int, default=1, help="windows at once")
    options.add_argument("--tokens", type=int, default=100, help="tokens of a window")
    options.add_argument("--write", type=Path, help="page whose tables are written; other sizes stay as they are")
    options.add_argument("--memory", type=int, nargs="*", default=[60, 600], help="seconds of sounds")
    return options.parse_args()


def sound(seconds: int) -> np.ndarray:
    """Tones that change, as loud as speech."""
    rng, count = np.random.default_rng(0), seconds * RATE
    pitch = np.repeat(rng.uniform(100, 3000, 10 * seconds), RATE // 10)
    loud = np.repeat(rng.uniform(0.1, 0.9, 10 * seconds), RATE // 10)
    return (loud * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)).astype(np.float32)[:count]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of Whisper's vocabulary, whose words mean nothing."""
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import WordLevel

    core = Tokenizer(WordLevel({f" w{i}": i for i in range(END)}, unk_token=" w0"))
    core.decoder = decoders.Fuse()
    special = {END: "<|endoftext|>", START: "<|startoftranscript|>", ENGLISH: "<|en|>", TRANSCRIBE: "<|transcribe|>"}
    special |= {
        50_358: "<|translate|>",
        50_361: "<|startofprev|>",
        50_362: "<|nospeech|>",
        NO_TIMES: "<|notimestamps|>",
    }
    names = [special.get(i, f"<|{i}|>") for i in range(END, VOCABULARY)]
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    core.save(str(folder / "tokenizer.json"))


def checkpoint(folder: Path, size: str, smoke: bool) -> Any:
    """Write a folder of Whisper's form with random weights; return transformers' model of it."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    width, layers, heads = (32, 2, 4) if smoke else SIZES[size]
    each = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    sizes = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in each.items()}
    ids = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START}
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=VOCABULARY, d_model=width, **sizes, **ids)).eval()
    settings = {
        "_from_model_config": False,
        "max_length": 448,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": ENGLISH},
        "task_to_id": {"transcribe": TRANSCRIBE},
        "no_timestamps_token_id": NO_TIMES,
        "suppress_tokens": list(range(END, VOCABULARY)),
        "begin_suppress_tokens": [220, END],
        "return_timestamps": False,
    }
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    return model


def qkv_side(folder: Path, precision: str, samples: np.ndarray, batch: int) -> Hear:
    """qkv's own door, without tests of the text."""
    run = load(folder, dtype="bf16" if precision == "bf16" else None)
    if precision == "int8":
        quantize(run.model, Quantization.parse({"bits": 8}))
    plain = {"compression": None, "log_probability": None, "silence": None, "temperatures": (0.0,), "guard": False}

    def hear(count: int) -> list[list[int]]:
        options = {**plain, "language": "en", "timestamps": False, "max_new_tokens": count + 3, "batch": batch}
        return [list(each.tokens) for each in transcribe(run, (samples, RATE), **options).segments]

    return hear


def features(samples: np.ndarray) -> np.ndarray:
    """Log-mel frames (windows, 80, 3000) of each window."""
    from transformers import WhisperFeatureExtractor

    windows = np.split(samples, len(samples) // (SECONDS * RATE))
    return WhisperFeatureExtractor()(windows, sampling_rate=RATE, return_tensors="np").input_features


def transformers_side(model: Any, precision: str, samples: np.ndarray, batch: int) -> Hear:
    """transformers' method, one batch of windows after another."""
    model = model.bfloat16() if precision == "bf16" else model

    def hear(count: int) -> list[list[int]]:
        heard, tokens = torch.from_numpy(features(samples)).to(model.dtype), list[list[int]]()
        with torch.inference_mode():
            for some in heard.split(batch):
                answer = model.generate(some, language="en", task="transcribe", max_new_tokens=count)
                tokens += answer[:, -count:].tolist()
        return tokens

    return hear


def ctranslate2_worker(pipe: Connection, threads: int, folder: str, kind: str, samples: np.ndarray, batch: int) -> None:
    """Reply to each number of tokens with those of each window."""

    def start() -> Callable[[Any], Any]:
        import ctranslate2

        converted = f"{folder}/converted-{kind}"
        ctranslate2.converters.TransformersConverter(folder).convert(converted)
        model = ctranslate2.models.Whisper(converted, device="cpu", compute_type=kind, intra_threads=threads)
        prompt = [START, ENGLISH, TRANSCRIBE, NO_TIMES]

        def hear(count: int) -> list[list[int]]:
            heard, tokens = features(samples), list[list[int]]()
            for first in range(0, len(heard), batch):
                some = np.ascontiguousarray(heard[first : first + batch])
                answers = model.generate(
                    ctranslate2.StorageView.from_array(some),
                    [prompt] * len(some),
                    beam_size=1,
                    max_length=2 * count,  # half of it is for new tokens
                    suppress_tokens=list(range(END, VOCABULARY)),
                )
                tokens += [list(answer.sequences_ids[0]) for answer in answers]
            return tokens

        return hear

    serve(pipe, start)


@contextlib.contextmanager
def sides(size: str, precision: str, asked: argparse.Namespace, died: dict[str, str]) -> Iterator[dict[str, Hear]]:
    """Libraries to compare, with the same weights. died: those that die at their start, with how."""
    samples = sound(asked.windows * SECONDS)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        theirs = checkpoint(folder, size, asked.smoke)
        found: dict[str, Hear] = {"qkv": qkv_side(folder, precision, samples, asked.batch)}
        if available("CTranslate2", "ctranslate2", not asked.smoke):
            given = (torch.get_num_threads(), str(folder), COMPUTE[precision], samples, asked.batch)
            try:
                found["CTranslate2"] = stack.enter_context(process("CTranslate2", ctranslate2_worker, *given))
            except RuntimeError as error:
                print(f"left out: CTranslate2 ({error})")
                if isinstance(error, Died):
                    died["CTranslate2"] = str(error)
        if precision != "int8" and available("transformers", "transformers", not asked.smoke):
            found["transformers"] = transformers_side(theirs, precision, samples, asked.batch)
        yield found


def share(tokens: list[int], expected: list[int]) -> float:
    """Share of ``expected`` that ``tokens`` has at the same places; 0 if there are more or fewer tokens."""
    return float(np.mean(np.equal(tokens, expected))) if len(tokens) == len(expected) else 0.0


def measure(size: str, precision: str, asked: argparse.Namespace) -> list[str]:
    """Compare the tokens of all sides, then time them in turns; return the row of the page."""
    died, count, seconds = dict[str, str](), 4 if asked.smoke else asked.tokens, asked.windows * SECONDS
    with sides(size, precision, asked, died) as runs:
        outputs = living(lambda live: {name: run(count) for name, run in live.items()}, runs, died)
        same = {
            name: np.mean([share(a, b) for a, b in zip(found, outputs["qkv"], strict=True)])
            for name, found in outputs.items()
        }
        if precision == "fp32":
            assert min(same.values()) == 1.0, f"other tokens than qkv's: {same}"
        times = living(
            lambda live: in_turns({name: partial(run, count) for name, run in live.items()}, asked.repeats), runs, died
        )
    rows = [
        (name, f"{t.best / seconds:.4f}", f"{t.middle / seconds:.4f}", f"{t.spread:.0%}", f"{same[name]:.0%}")
        for name, t in times.items()
    ]
    title = f"\nWhisper {size}, {precision}, {seconds} s of sound, {count} tokens a window, {asked.batch} at once"
    dead = [(name, how, "", "", "") for name, how in died.items() if name not in times]
    print_table(title, ["side", "real-time factor, best", "median", "spread", "same tokens"], [*rows, *dead])
    best = {name: t.best for name, t in times.items()}
    say_ratio(best)
    factors = [f"{best[name] / seconds:.4f}" if name in best else died.get(name, "") for name in SIDES]
    peer = min((taken for name, taken in best.items() if name != "qkv"), default=None)
    ratios = [f"{taken / best['qkv']:.2f}" if taken else "" for taken in (best.get("CTranslate2"), peer)]
    return [f"Whisper {size}", precision, *factors, *ratios, f"{date.today()}"]


def memory_worker(pipe: Connection, folder: str, seconds: int) -> None:
    """Reply with the peak bytes of Python's objects and the growth of the process over a sound of ``seconds``."""

    def start() -> Callable[[Any], Any]:
        import resource

        path = Path(folder) / f"{seconds}.wav"
        run = load(folder)
        options: dict[str, Any] = {"language": "en", "timestamps": False, "max_new_tokens": 8, "temperatures": (0.0,)}
        transcribe(run, (sound(31), RATE), **options)

        def peak(_: Any) -> tuple[int, int]:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            tracemalloc.start()
            transcribe(run, path, **options)
            _, traced = tracemalloc.get_traced_memory()
            return traced, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

        return peak

    serve(pipe, start)


def measure_memory(asked: argparse.Namespace) -> list[list[str]]:
    """Print the peak memory over sounds of several lengths, read from a file; return the rows of the page."""
    rows = list[list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), "tiny", smoke=True)
        for seconds in (31, 62) if asked.smoke else asked.memory:
            data = sound_bytes(Sound(sound(seconds), RATE))
            (Path(folder) / f"{seconds}.wav").write_bytes(data)
            with process("qkv", memory_worker, folder, seconds) as ask:
                traced, grown = ask(None)
            rows.append([f"{seconds} s", *(f"{size / 2**20:.1f}" for size in (len(data), traced, grown))])
    print_table("\nmemory over a sound from a file, qkv", MEMORY_COLUMNS, rows)
    return rows


def main() -> None:
    """Carry out the benchmark."""
    asked = arguments()
    say_where("transformers", "ctranslate2", "soundfile")
    if asked.smoke:
        asked.size, asked.windows = asked.size[:1], 1
    rows = [measure(size, precision, asked) for size in asked.size for precision in asked.precision]
    memory = measure_memory(asked) if asked.memory else []
    if asked.write:
        name = "factors: transcription.py"
        write_table(asked.write, name, COLUMNS, with_rows_of(asked.write, name, rows, keys=2))
        if memory:
            write_table(asked.write, "memory: transcription.py", MEMORY_COLUMNS, memory)


if __name__ == "__main__":
    main()
