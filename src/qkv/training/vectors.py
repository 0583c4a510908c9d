"""Initialise embeddings with pretrained word vectors, from a run or a text file.

Each token gets the vector of its text without surrounding spaces, or of the lower-case text if the first is missing.
Tokens without a vector keep their random initialisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Stack, Transformer
from qkv.runs.storage.files import read_tensors
from qkv.runs.storage.folder import WEIGHTS
from qkv.runs.storage.identity import MADE_WITH, check_unedited
from qkv.spec.frontends import Frontend
from qkv.spec.model import Model
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

_TABLE = "frontend.table"


def start_vectors(model: Transformer, spec: Model, vocabulary: Vocabulary) -> list[str]:
    """Initialise the token embeddings of ``model`` with the pretrained word vectors that ``spec`` names, if any; return
    notices. Raises ``UserError`` if sizes or vocabulary do not match.
    """
    notes = []
    stacks: list[tuple[str, Stack | None, Frontend | None, Tokenizer]] = [
        ("model", model, spec.frontend, vocabulary.target),
        ("model.encoder", model.encoder, spec.encoder and spec.encoder.frontend, vocabulary.tokenizer),
    ]
    for path, stack, frontend, tokenizer in stacks:
        source = frontend and frontend.initial_vectors
        if stack is not None and stack.frontend.table is not None and source:
            notes.append(_fill(stack.frontend.table, source, tokenizer, f"{path}.frontend.vectors"))
    return notes


@torch.no_grad()
def _fill(table: Tensor, source: str, tokenizer: Tokenizer, key: str) -> str:
    words = {index: word for index, word in words_of(tokenizer).items() if index < table.shape[0]}
    forms = {form for word in words.values() for form in (word, word.lower())}
    vectors = vectors_of(source, forms, key)
    size = len(next(iter(vectors.values()))) if vectors else table.shape[1]
    if size != table.shape[1]:
        raise UserError(
            f"{key}: the vectors in {source!r} have {size} features, but the model's embeddings have {table.shape[1]}; "
            f"set model.width={size}"
        )
    count = 0
    for index, word in words.items():
        vector = vectors.get(word, vectors.get(word.lower()))
        if vector is not None:
            table[index] = vector.to(table)
            count += 1
    if not count:
        raise UserError(f"{key}: {source!r} has no vector for any token of the model")
    return f"{count:,} of {table.shape[0]:,} token embeddings are initialised with vectors from {source!r}"


def words_of(tokenizer: Tokenizer) -> dict[int, str]:
    """Return token id -> text without surrounding spaces; special tokens and whitespace tokens are omitted."""
    special = set(tokenizer.specials.values())
    words = {index: tokenizer.decode([index]).strip() for index in range(tokenizer.vocab_size) if index not in special}
    return {index: word for index, word in words.items() if word}


def vectors_of(source: str, words: set[str], key: str) -> Mapping[str, Tensor]:
    """Read the pretrained vectors of the words in ``words`` from a run folder or a text file; return word -> vector
    (D,).

    ``key``: name of the setting, for error messages. Raises ``UserError``.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _of_run(path, words, key)
    if not path.is_file():
        raise UserError(f"{key}: there is no file or run folder {source!r}")
    return _of_text(path, words, key)


def _of_run(folder: Path, names: set[str], key: str) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{key}: {folder} is not the folder of a trained run: it holds no {WEIGHTS}")
    tensors, metadata = read_tensors(folder / WEIGHTS)
    check_unedited(metadata.get(MADE_WITH), None, folder)
    table = tensors[_TABLE]
    # If several tokens have the same text, the first is used.
    words = reversed(words_of(Vocabulary.load(folder).target).items())
    return {word: table[index] for index, word in words if word in names}


def _of_text(path: Path, names: set[str], key: str) -> dict[str, Tensor]:
    """Read vectors from word2vec's text format: the first line has the number of words and the vector size, each
    further line a word and its numbers. GloVe's files lack the first line.
    """
    vectors: dict[str, Tensor] = {}
    size = 0
    for number, parts in _lines(path):
        if number == 1 and len(parts) == 2:
            continue
        size = size or len(parts) - 1
        if parts[0] not in names or parts[0] in vectors:
            continue
        try:
            vectors[parts[0]] = torch.tensor([float(part) for part in parts[1:]])
        except ValueError:
            raise UserError(f"{key}: line {number} of {path} is not a word followed by numbers") from None
        if len(parts) - 1 != size:
            raise UserError(
                f"{key}: line {number} of {path} has {len(parts) - 1} numbers, and the lines before it have {size}"
            )
    return vectors


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            parts = line.split()
            if parts:
                yield number, parts
