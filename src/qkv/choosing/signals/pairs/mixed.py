"""Choose a recipe for rows of several inputs that are read together: a picture, a text, numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.choosing.signals.pairs.stacks import stack_for
from qkv.choosing.signals.register import RecipeRequest
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.features.ngrams import words_of
from qkv.data.processors.processor import build_processor
from qkv.data.records.model import Records
from qkv.data.records.values import Unusable
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.frontends import Frontend
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import AllInputs, Features, Ngrams, WidePath
from qkv.spec.parts import LayerNorm
from qkv.spec.processors import INPUT, Processor
from qkv.spec.recipe import Recipe
from qkv.spec.signals.cells import CellVector
from qkv.spec.signals.joined import Joined
from qkv.spec.tokenizers import Tokenizer, WordPiece
from qkv.tasks.baselines.baselines import NGRAMS_PER_WORD

_EPOCHS, _FEW, _ROWS = 40, 2_000, 32
_LONGEST, _MARGIN = 128, 1.5
"""Largest number of tokens of a text; factor for signals that are longer than those of the training rows."""
_CHARACTERS = 4
"""Characters of a token, roughly."""
_BUCKETS = 1 << 17
_POSITIONS = 4096
"""Bound of the positions of a row."""


def choose_mixed(request: RecipeRequest) -> Recipe:
    """Choose a recipe for the inputs of ``data.inputs`` in one row; each has the front end of its recipe alone.

    Raises ``UserError`` if no recipe is chosen for one of the kinds of signals.
    """
    data, records = request.data, request.records
    rows = records.splits["train"]
    readers, frontends, positions = dict[str, Any](data.inputs), dict[str, Frontend](), 0
    for name, processor in data.processors.items():
        readers[name], frontends[name] = _front(request, records, name, processor)
        positions += _positions(frontends[name], readers[name], [row[name] for row in rows])
    if data.text_input is not None:
        readers[data.text_input], tokens = _tokenizer([str(row[data.text_input]) for row in rows])
        positions += tokens
    width, layers = (64, 2) if len(rows) < _FEW else (128, 3)
    block = Block(
        branches=(Attention(num_heads=width // 32, mask=Full()), FeedForward(hidden=2 * width)),
        norm=LayerNorm(),
        dropout=0.1,
    )
    summary = f"{len(rows):,} rows of {_listed(readers, records.columns)}"
    training = training_of(len(rows), _ROWS, _EPOCHS, request.machine.precision, warmup=200, validated=40)
    return Recipe(
        description=" ".join([f"{summary}: chosen for this data and this machine.", *filter(None, [request.note])]),
        data=data.changed(columns={**data.columns, **records.columns}, inputs=readers, batching=RandomCrops()),
        model=Model(
            width=width,
            num_layers=layers,
            context_length=min(_POSITIONS, positions),
            frontend=Joined(inputs=frontends, dropout=0.1),
            blocks=(block,),
            head=Head.kinds()[request.task.head](),
        ),
        wide=_wide(readers, [str(row[data.text_input]) for row in rows] if data.text_input else []),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
    )


def _front(request: RecipeRequest, records: Records, name: str, processor: Processor) -> tuple[Processor, Frontend]:
    """Return the processor of an input, fitted, and its front end."""
    if processor.of_cells:
        return build_processor(processor).fitted([row[name] for row in records.splits["train"]]), CellVector()
    stack = stack_for(request, processor, records, name)
    return stack.reader, stack.model.frontend


def _positions(frontend: Frontend, processor: Processor, values: Sequence[Any]) -> int:
    """Return the positions that values of an input take in a row, with a margin if their lengths differ."""
    fitted, reader = frontend.of_processors({INPUT: processor}), build_processor(processor)
    if fitted.num_positions is not None:
        return fitted.num_positions
    longest = 1
    for value in values:
        try:
            longest = max(longest, fitted.positions_of(reader.size(reader.read(value))))
        except Unusable:
            continue
    return round(_MARGIN * longest)


def _wide(readers: Mapping[str, Any], texts: Sequence[str]) -> AllInputs:
    """Choose the linear model beside the network: the strongest features of each input."""
    parts = dict[str, WidePath]()
    for name, reader in readers.items():
        if isinstance(reader, Tokenizer):
            words = {word for text in texts for word in words_of(text)}
            parts[name] = Ngrams(buckets=min(_BUCKETS, 1 << max(14, (2 * NGRAMS_PER_WORD * len(words)).bit_length())))
        else:
            part = build_processor(reader).strongest()
            parts[name] = Features() if part.counts else part
    return AllInputs(parts=parts)


def _tokenizer(texts: Sequence[str]) -> tuple[Tokenizer, int]:
    """Return the tokenizer of the texts, and how many tokens of a text are read."""
    longest = float(np.quantile([len(text) for text in texts], 0.99)) / _CHARACTERS
    words = len({word for text in texts for word in text.lower().split()})
    length = min(_LONGEST, max(8, round(_MARGIN * longest) + 2))
    return WordPiece(vocab_size=max(200, min(8000, 2 * words))), length


def _listed(readers: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """List the inputs with their columns and kinds, for a description."""
    kinds = {name: "text" if isinstance(each, Tokenizer) else _kind(each) for name, each in readers.items()}
    return ", ".join(f"{columns.get(name, name)!r} ({kind})" for name, kind in kinds.items())


def _kind(processor: Processor) -> str:
    if not processor.of_cells:
        return processor.kind
    return "categories" if getattr(processor, "mean", None) is None else "numbers"
