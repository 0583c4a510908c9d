"""Peers of the decoding benchmark: greedy generation by other libraries, each in a process of its own.

In a common process, the OpenMP library that CTranslate2 shares with torch counts more threads than processors and stops
torch's threads from spinning between products: qkv then generates 45 tokens/s instead of 54.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from peer_process import process, serve
from qkv.interop.gguf.peer import LlamaCpp
from qkv.interop.gguf.write import save_gguf
from qkv.interop.save import save_published
from qkv.models.transformer import Transformer
from qkv.runs.bench.sides import Writer, other_writer

GGUF = {"fp32": "fp32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
"""Type of llama.cpp's matrices by precision."""


class Work(NamedTuple):
    """What a peer is to run: folder of the model, precision, threads, most rows and most tokens of a row."""

    folder: Path
    precision: str
    threads: int
    batch: int
    length: int


class Peer(NamedTuple):
    """Library: module that it imports, package, precisions, and how to start it in its own process."""

    module: str
    package: str
    precisions: tuple[str, ...]
    start: Callable[[Work], Writer]


def _transformers(work: Work) -> Writer:
    """``model.generate``, eager, with its key/value cache and without an end token."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(work.threads)
    kind = torch.bfloat16 if work.precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(work.folder, dtype=kind, attn_implementation="sdpa").eval()
    write = other_writer(model)

    def run(prompts: list[list[int]], new: int) -> list[list[int]]:
        written: torch.Tensor = write(prompts, new)
        return written[:, len(prompts[0]) :].tolist()

    return run


def _ctranslate2(work: Work) -> Writer:
    """CTranslate2's generator, converted from the exported folder."""
    import ctranslate2

    converted = work.folder / f"converted-{work.precision}"
    _name_tokens(work.folder)
    ctranslate2.converters.TransformersConverter(str(work.folder)).convert(str(converted))
    kind = "int8" if work.precision == "int8" else "float32"
    generator = ctranslate2.Generator(str(converted), device="cpu", compute_type=kind, intra_threads=work.threads)

    def run(prompts: list[list[int]], new: int) -> list[list[int]]:
        tokens = [[f"t{i}" for i in prompt] for prompt in prompts]
        options = {"max_length": new, "min_length": new, "include_prompt_in_result": False, "max_batch_size": 0}
        return [list(result.sequences_ids[0]) for result in generator.generate_batch(tokens, **options)]

    return run


def _name_tokens(folder: Path) -> None:
    """Write a tokenizer of the model's vocabulary size, which CTranslate2's converter requires."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, PreTrainedTokenizerFast

    rows = AutoConfig.from_pretrained(folder).vocab_size
    words, last = Tokenizer(WordLevel({f"t{i}": i for i in range(rows)}, unk_token="t0")), f"t{rows - 1}"
    named = PreTrainedTokenizerFast(tokenizer_object=words, unk_token=last, bos_token=last, eos_token=last)
    named.save_pretrained(folder)


def _llama_cpp(work: Work) -> Writer:
    """llama.cpp from the GGUF file, through its batches."""
    file = work.folder / f"{work.precision}.gguf"
    return LlamaCpp(file, work.threads, work.length, work.batch).generate


PEERS = {
    "transformers": Peer("transformers", "transformers", ("fp32", "bf16"), _transformers),
    "CTranslate2": Peer("ctranslate2", "ctranslate2", ("fp32", "int8"), _ctranslate2),
    "llama.cpp": Peer("llama_cpp", "llama-cpp-python", ("fp32", "bf16", "int8", "int4"), _llama_cpp),
}


def write_sources(model: Transformer, folder: Path, precision: str) -> None:
    """Export ``model`` for all peers: a Hugging Face folder, and a GGUF file of this precision."""
    save_published(model, folder)
    save_gguf(model, folder / f"{precision}.gguf", dtype=GGUF[precision])


@contextlib.contextmanager
def running(name: str, work: Work, packages: Path | None) -> Iterator[Writer]:
    """Start a peer in a new process. ``packages``: folder with packages that come before the installed ones. Raises
    ``RuntimeError`` if it cannot run the model, and ``Died`` if it dies.
    """
    with process(name, _serve, PEERS[name], work, packages) as ask:

        def run(prompts: list[list[int]], new: int) -> list[list[int]]:
            found: list[list[int]] = ask((prompts, new))
            assert [len(row) for row in found] == [new] * len(prompts)
            return found

        yield run


def _serve(pipe: Connection, peer: Peer, work: Work, packages: Path | None) -> None:
    """Reply to each (prompts, new) with the generated tokens."""
    if packages is not None:
        sys.path.insert(0, str(packages))

    def start() -> Callable[[Any], Any]:
        generator = peer.start(work)
        return lambda question: generator(*question)

    serve(pipe, start)


def equal_rows(found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> int:
    """Number of rows with the same tokens."""
    return sum(list(a) == list(b) for a, b in zip(found, wanted, strict=True))
