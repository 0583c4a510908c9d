"""Interface to llama.cpp, through the package llama-cpp-python: greedy generation of several sequences, and logits."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.system.errors import UserError

_MOST = 2048
"""Maximum number of tokens in one call."""


class BatchToken(NamedTuple):
    """Token of a call: id, position, index of its sequence, and whether the call returns logits after it."""

    token: int
    position: int
    sequence: int
    wanted: bool


class LlamaCpp:
    """Model of a GGUF file that llama.cpp runs on the CPU.

    threads: number of threads, for prompts and for single steps.   context: maximum number of tokens of a sequence.
    batch: maximum number of sequences at once.   exact: store keys and values in fp32 instead of fp16.

    Raises UserError if the library is missing or cannot open the file.
    """

    def __init__(self, file: Path, threads: int = 1, context: int = 512, batch: int = 1, exact: bool = False):
        try:
            llama_cpp: Any = importlib.import_module("llama_cpp")
        except ImportError:
            raise UserError("the package llama-cpp-python is not installed") from None
        self._library = llama_cpp
        _silence(llama_cpp)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        if not self._model:
            raise UserError(f"llama.cpp cannot open {file}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context * batch, _MOST, 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_seq_max, settings.kv_unified = batch, batch > 1
        if exact:
            settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
            settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context: Any = llama_cpp.llama_init_from_model(self._model, settings)
        self._vocabulary: Any = llama_cpp.llama_model_get_vocab(self._model)
        self.rows: int = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch: Any = llama_cpp.llama_batch_init(_MOST, 0, batch)

    def close(self) -> None:
        """Free the model."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Generate ``new`` tokens greedily after each of ``prompts``, which have equal lengths of at most 2,048."""
        self._clear()
        length, at_once = len(prompts[0]), max(1, _MOST // len(prompts[0]))
        last = list[int]()
        for begin in range(0, len(prompts), at_once):
            some = range(begin, min(len(prompts), begin + at_once))
            last += self._best([BatchToken(prompts[k][i], i, k, i == length - 1) for k in some for i in range(length)])
        texts = [[token] for token in last]
        for step in range(1, new):
            last = self._best([BatchToken(token, length + step - 1, k, True) for k, token in enumerate(last)])
            for tokens, token in zip(texts, last, strict=True):
                tokens.append(token)
        return texts

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Compute logits (N, V) after each of the N ``ids``, at most 2,048."""
        self._clear()
        self._run([BatchToken(token, i, 0, True) for i, token in enumerate(ids)])
        return np.stack([self._row(i).copy() for i in range(len(ids))])

    def encode(self, text: str) -> list[int]:
        """Tokenize ``text`` with llama.cpp's tokenizer, without special tokens."""
        plain = text.encode()
        room = (self._library.llama_token * (len(plain) + 8))()
        count = self._library.llama_tokenize(self._vocabulary, plain, len(plain), room, len(room), False, False)
        return list(room[:count])

    def _clear(self) -> None:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def _best(self, entries: Sequence[BatchToken]) -> list[int]:
        self._run(entries)
        return [int(self._row(i).argmax()) for i, entry in enumerate(entries) if entry.wanted]

    def _run(self, entries: Sequence[BatchToken]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, entry in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = entry.token, entry.position, entry.wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, entry.sequence
        code = self._library.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode failed with {code}")

    def _row(self, index: int) -> np.ndarray:
        pointer = self._library.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, shape=(self.rows,))


@cache
def _silence(library: Any) -> Any:
    """Turn off the log of llama.cpp; return the callback that receives its messages instead.

    The cache holds a reference to the callback, because llama.cpp calls it until the process ends.
    """
    silent = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(silent, ctypes.c_void_p(0))
    return silent


def logits_of(file: Path, ids: Sequence[int]) -> np.ndarray:
    """Compute logits (N, V) of the model in a GGUF file with llama.cpp, with keys and values in fp32."""
    model = LlamaCpp(file, context=max(256, len(ids)), exact=True)
    try:
        return model.logits(ids)
    finally:
        model.close()
