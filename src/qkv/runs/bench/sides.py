"""Sides of a benchmark: qkv with weights in a given precision, and the transformers library with the same weights."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.generation.decode.sample import generate
from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG
from qkv.interop.save import covering, save_published
from qkv.layers.signal import Signal
from qkv.models.edit.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.runs.quantize import write_quantized
from qkv.runs.storage.folder import SPEC
from qkv.runs.storage.load import load, load_stored
from qkv.spec.generation import Generation
from qkv.spec.models.quantization import Quantization
from qkv.system.errors import UserError

BITS = {"fp32": 32, "bf16": 16, "int8": 8, "int4": 4}
"""Bits of a weight by precision, as in ``qkv quantize``."""
Opener = Callable[[str], Transformer]
"""Function that returns the measured model in a precision, a key of ``BITS``."""
Writer = Callable[[list[list[int]], int], object]
"""(prompts of equal length, number of new tokens) -> generated tokens."""
Reader = Callable[[Tensor], object]
"""Values of a batch -> outputs of one forward pass."""


def lowered(model: Transformer, precision: str) -> Transformer:
    """Return a copy of ``model`` with weights in ``precision``, a key of ``BITS``."""
    clone = copy.deepcopy(model).to(torch.float32).eval()
    if BITS[precision] < 32:
        quantize(clone, Quantization.parse({"bits": BITS[precision]}))
    return clone


def in_memory(model: Transformer) -> Opener:
    """Return an ``Opener`` that copies ``model`` in memory."""
    return lambda precision: lowered(model, precision)


def through_folders(place: Path, folder: Path) -> Opener:
    """Return an ``Opener`` that loads the run or published checkpoint ``place`` as users do: the weights are
    memory-mapped. For fewer than 32 bits, the model is quantised as by ``qkv quantize``, written to a new folder within
    ``folder``, and loaded from there.
    """

    def opened(precision: str) -> Transformer:
        if BITS[precision] == 32:
            whole: dict[str, Any] = {} if (place / SPEC).is_file() else {"dtype": "fp32"}
            return load(place, **whole).model
        written = folder / precision
        write_quantized(load_stored(place), Quantization.parse({"bits": BITS[precision]}), written)
        return load(written).model

    return opened


def writer(model: Transformer) -> Writer:
    """Return qkv's own ``generate`` with greedy decoding, as ``qkv.generate`` calls it."""

    def run(prompts: list[list[int]], new: int) -> object:
        return generate(model, prompts, Generation(max_new_tokens=new, temperature=0.0))

    return run


def reader(model: Transformer) -> Reader:
    """Return qkv's forward pass over whole rows."""

    def run(values: Tensor) -> object:
        with torch.inference_mode():
            return model(Signal(values))[0]

    return run


def other_writer(model: Any, **settings: Any) -> Writer:
    """Return the function ``generate`` of a model of the transformers library: greedy, eager, with its KV cache,
    without an end token.

    ``settings``: further arguments of that ``generate``.
    """
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def run(prompts: list[list[int]], new: int) -> object:
        ids = torch.tensor(prompts, device=model.device)
        greedy = {"max_new_tokens": new, "do_sample": False, **settings}
        written = model.generate(ids, attention_mask=torch.ones_like(ids), **greedy)
        if written.shape[1] != len(prompts[0]) + new:
            raise RuntimeError(f"{written.shape[1] - len(prompts[0])} tokens were generated in place of {new}")
        return written

    return run


def other_reader(model: Any) -> Reader:
    """Return the forward pass of a model of the transformers library."""
    kind = next(model.parameters()).dtype

    def run(values: Tensor) -> object:
        with torch.inference_mode():
            return model(values.to(kind) if values.is_floating_point() else values)

    return run


def other_model(model: Transformer) -> Any:
    """Convert ``model`` to the transformers library, in fp32, through a published checkpoint of its family.

    Raises ``UserError`` if the library is not installed, or no family covers the model.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UserError("--peers: the transformers library is not installed: pip install transformers")
    if covering(model.spec) is None:
        raise UserError("--peers: no published family covers this model, so the transformers library cannot open it")
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        save_published(lowered(model, "fp32"), folder)
        kind = getattr(transformers, read_json(folder / CONFIG)["architectures"][0])
        return kind.from_pretrained(folder, torch_dtype=torch.float32, local_files_only=True).eval()
