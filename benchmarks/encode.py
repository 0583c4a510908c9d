"""Benchmark of encoders: rows per second of one forward pass, BERT-base and ViT-B/16 with random weights.

    python benchmarks/encode.py
    python benchmarks/encode.py --model bert --precision fp32
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 CT2_FORCE_CPU_ISA=AVX2 python benchmarks/encode.py --precision fp32

The same weights on every side: transformers writes the checkpoint, qkv opens it, torch exports it to ONNX from
transformers' model, and CTranslate2 converts it (BERT only). Outputs are the hidden states of the last layer, compared
before anything is timed. onnxruntime and CTranslate2 run in processes of their own, with as many threads.

The settings in the last line cap torch, oneDNN and CTranslate2 to AVX2. onnxruntime has no such setting: it keeps
AVX-512, and its figures under a cap are those of the uncapped machine.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer_process import Died, living, process, serve
from qkv.interop.load import load_published
from side_by_side import available, compare, in_turns, parser, say_where

BATCH, LENGTH = 8, 128
TOLERANCE = {"fp32": 1e-4, "bf16": 0.1}
"""Largest difference of the hidden states between two sides, as a share of the largest."""
Encode = Callable[[Tensor], np.ndarray]
"""Input of a batch -> hidden states of the last layer (B, N, D)."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--model", choices=("bert", "vit"), nargs="*", default=["bert", "vit"])
    options.add_argument("--precision", choices=("fp32", "bf16"), nargs="*", default=["fp32", "bf16"])
    return options.parse_args()


def checkpoint(kind: str, folder: Path, smoke: bool) -> Any:
    """Write a checkpoint with random weights to ``folder``; return transformers' model of it."""
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    tiny = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    options = {**(tiny if smoke else {}), "attn_implementation": "sdpa"}
    if kind == "bert":
        # CTranslate2's converter asks for a key of the config that transformers no longer writes.
        model = BertModel(BertConfig(**options, position_embedding_type="absolute"), add_pooling_layer=True)
    else:
        model = ViTModel(ViTConfig(**options), add_pooling_layer=False)
    model.eval().save_pretrained(folder)
    return model


def inputs(kind: str) -> Tensor:
    """Input of a batch: ids without padding, or pixels."""
    generator = torch.Generator().manual_seed(1)
    if kind == "bert":
        return torch.randint(5, 30000, (BATCH, LENGTH), generator=generator)
    return torch.randn(BATCH, 3, 224, 224, generator=generator)


def qkv_side(folder: Path, bf16: bool) -> Encode:
    """qkv's forward pass up to the input of the head."""
    model = load_published(folder, copy=True).model
    model = (model.bfloat16() if bf16 else model).eval()

    def run(values: Tensor) -> np.ndarray:
        with torch.inference_mode():
            return model.features(values)[0].float().numpy()

    return run


def transformers_side(model: Any, bf16: bool) -> Encode:
    """The model's own forward pass, eager, with torch's fused attention."""
    model = model.bfloat16() if bf16 else model

    def run(values: Tensor) -> np.ndarray:
        with torch.inference_mode():
            return model(values.to(model.dtype) if values.is_floating_point() else values)[0].float().numpy()

    return run


def onnx_file(model: Any, kind: str, folder: Path) -> None:
    """Write ``model`` to ``folder`` as an ONNX file of the benchmark's sizes, which leaves onnxruntime most freedom."""

    class Hidden(torch.nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return model(values)[0]

    program = torch.onnx.export(Hidden().eval(), (inputs(kind),), input_names=["values"], verbose=False)
    assert program is not None
    program.save(folder / "model.onnx")


def encoder(ask: Callable[[Any], Any]) -> Encode:
    """Side in a process of its own: a second OpenMP library in this one would slow the others."""
    return lambda values: ask(values.numpy())


def onnxruntime_worker(pipe: Connection, threads: int, folder: str) -> None:
    """Reply to each batch with the hidden states of ``model.onnx``, at onnxruntime's highest level of optimisation."""

    def start() -> Callable[[Any], Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
        return lambda values: session.run(None, {"values": values})[0]

    serve(pipe, start)


def ctranslate2_worker(pipe: Connection, threads: int, folder: str) -> None:
    """Reply to each batch with the hidden states of CTranslate2's encoder."""

    def start() -> Callable[[Any], Any]:
        import ctranslate2

        converted = f"{folder}/converted"
        ctranslate2.converters.TransformersConverter(folder).convert(converted)
        model = ctranslate2.Encoder(converted, device="cpu", compute_type="float32", intra_threads=threads)
        return lambda values: np.array(model.forward_batch(values.tolist()).last_hidden_state)

    serve(pipe, start)


def write_tokenizer(folder: Path, count: int) -> None:
    """Write a tokenizer of the model's vocabulary size, which CTranslate2's converter requires."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"t{i}": i for i in range(count)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0").save_pretrained(folder)


@contextlib.contextmanager
def sides(kind: str, precision: str, smoke: bool, died: dict[str, str]) -> Iterator[dict[str, Encode]]:
    """Libraries to compare, with the same weights. died: those that die at their start, with how."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        theirs, bf16 = checkpoint(kind, folder, smoke), precision == "bf16"
        found, workers = {"qkv": qkv_side(folder, bf16)}, dict[str, Callable[..., None]]()
        if not bf16 and available("onnxruntime", "onnxruntime", not smoke):
            onnx_file(theirs, kind, folder)
            workers["onnxruntime"] = onnxruntime_worker
        if not bf16 and kind == "bert" and available("CTranslate2", "ctranslate2", not smoke):
            write_tokenizer(folder, theirs.config.vocab_size)
            workers["CTranslate2"] = ctranslate2_worker
        for name, work in workers.items():
            try:
                ask = stack.enter_context(process(name, work, torch.get_num_threads(), str(folder)))
            except RuntimeError as error:
                print(f"left out: {name} ({error})")
                if isinstance(error, Died):
                    died[name] = str(error)
            else:
                found[name] = encoder(ask)
        yield {**found, "transformers": transformers_side(theirs, bf16)}


def measure(kind: str, precision: str, asked: argparse.Namespace) -> None:
    """Compare the outputs of all sides, then time them in turns."""
    values, died = inputs(kind), dict[str, str]()
    with sides(kind, precision, asked.smoke, died) as runs:
        outputs = living(lambda live: {name: run(values) for name, run in live.items()}, runs, died)
        largest = np.abs(outputs["qkv"]).max()
        for name, found in outputs.items():
            error = np.abs(found - outputs["qkv"]).max() / largest
            assert error < TOLERANCE[precision], f"{name} gives other hidden states than qkv, by {error:.1e}"
        times = living(
            lambda live: in_turns({name: partial(run, values) for name, run in live.items()}, asked.repeats), runs, died
        )
        shape = f"BERT-base, {BATCH} × {LENGTH}" if kind == "bert" else f"ViT-B/16, batch {BATCH}, 224 × 224"
        compare(f"{shape}, {precision}", "rows/s", BATCH, times, died=died)


def main() -> None:
    """Carry out the benchmark."""
    asked = arguments()
    say_where("transformers", "onnxruntime", "ctranslate2")
    for kind in asked.model:
        for precision in asked.precision:
            measure(kind, precision, asked)


if __name__ == "__main__":
    main()
