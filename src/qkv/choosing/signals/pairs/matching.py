"""Choose a recipe that matches two inputs of a table: a stack for each, and the training length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.choosing.signals.pairs.stacks import InputStack, encoder_of, stack_for
from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor, every_recognised
from qkv.data.records.formats import table_of
from qkv.data.records.model import Records
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import Data, RandomCrops
from qkv.spec.frontends import Text
from qkv.spec.heads import MatchingHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Features, Ngrams, PairMap
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Classification, Matching
from qkv.spec.tokenizers import Tokenizer, WordPiece
from qkv.system.errors import UserError
from qkv.tasks.inputs import TEXT
from qkv.tasks.registry import build_task

_EPOCHS, _FEWEST_VALIDATIONS, _ROWS = 60, 20, 64
_LONGEST = 64
"""Maximum number of tokens of a text; longer ones are cut."""
_CHARACTERS = 4
"""Characters of a token, roughly."""
_BUCKETS = 1 << 13
"""Hash buckets of the n-grams of a text, few because each has a vector."""


@chooses(Matching)
def choose_matching(request: RecipeRequest) -> Recipe:
    """Choose a recipe that matches two inputs: each has the stack that the recipe for it alone would have.

    The inputs are those of ``data.inputs``, else the columns of two kinds of signals, or of one and a text. Raises
    ``UserError`` if the table does not have them.
    """
    data = request.data if request.data.inputs else request.data.changed(inputs=_inputs(request.data))
    completed = RecipeRequest(request.task, data, request.changes, request.machine)
    records = completed.records
    stacks = {name: _stack(completed, records, name) for name in data.inputs}
    (first, encoder), (second, model) = stacks.items()
    rows = len(records.splits["train"])
    training = training_of(
        rows, min(_ROWS, max(2, rows // 4)), _EPOCHS, request.machine.precision, validations=_FEWEST_VALIDATIONS
    )
    validation = training.validation.changed(best="recall_1")
    return Recipe(
        description=f"{counted(rows, 'pair')} of {first} and {second}: chosen for this data and this machine.",
        data=data.changed(
            columns={**data.columns, **records.columns},
            inputs={name: each.reader for name, each in stacks.items()},
            batching=RandomCrops(),
        ),
        model=model.model.changed(encoder=encoder_of(encoder.model), head=MatchingHead()),
        wide=_linear(encoder, model),
        task=request.task,
        training=training.changed(validation=validation),
        quick=short_form(training.steps),
    )


def _inputs(data: Data) -> dict[str, Any]:
    """Return the two inputs that the table has, by the names of their roles: kinds of signals, then a text."""
    roles = build_task(Classification(), data).roles  # type: ignore[attr-defined]
    kinds = [*every_recognised(data.source, lambda: table_of(data.source, data, roles, "data.source"), data.columns)]
    inputs: dict[str, Any] = {build_processor(each).role.name: each for each in kinds[:2]}
    if len(inputs) < 2:
        inputs[TEXT.name] = WordPiece()
    if len(inputs) < 2:
        raise UserError(
            f"data.source: {data.source!r} has no column of images, sounds or other signals that a text could match; "
            "name the columns, as in --image picture --text caption"
        )
    return inputs


def _stack(request: RecipeRequest, records: Records, name: str) -> InputStack:
    """Choose processor, front end and blocks as for the input ``name`` alone."""
    reader = request.data.inputs[name]
    if isinstance(reader, Tokenizer):
        return _of_text([row[name] for row in records.splits["train"]])
    return stack_for(request, reader, records, name)


def _linear(*stacks: InputStack) -> PairMap:
    """Choose linear maps of the simple features of both inputs: n-grams of a text, strong features of other signals."""
    first, second = (
        Ngrams(buckets=_BUCKETS) if isinstance(each.reader, Tokenizer) else _dense(each.reader) for each in stacks
    )
    return PairMap(first=first, second=second)


def _dense(reader: Processor) -> Features:
    """Choose the strongest simple features that every value has equally many of."""
    part = build_processor(reader).strongest()
    return Features() if part.counts else part


def _of_text(texts: Sequence[str]) -> InputStack:
    longest = float(np.quantile([len(str(text)) for text in texts], 0.99)) / _CHARACTERS
    words = len({word for text in texts for word in str(text).lower().split()})
    length = min(_LONGEST, max(8, round(1.5 * longest) + 2))
    attention = Attention(num_heads=4, mask=Full())
    block = Block(branches=(attention, FeedForward(hidden=256)), dropout=0.1)
    model = Model(width=128, num_layers=2, context_length=length, frontend=Text(dropout=0.1), blocks=(block,))
    return InputStack(WordPiece(vocab_size=max(200, min(8000, 2 * words))), model)
