"""Choose a recipe that writes captions: the stack that reads the images, a decoder, and the training length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.choosing.signals.pairs.stacks import encoder_of, stack_for
from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor, recognised
from qkv.data.records.formats import table_of
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.frontends import Text
from qkv.spec.generation import Generation
from qkv.spec.model import Block, Model
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.wide import Nearest
from qkv.spec.recipe import Recipe
from qkv.spec.signals.images import Images
from qkv.spec.tasks import Captioning
from qkv.spec.tokenizers import WordPiece
from qkv.tasks.registry import build_task

_EPOCHS, _ROWS, _LONGEST, _VALIDATIONS = 60, 32, 64, 20
_CHARACTERS = 4
"""Characters of a token, roughly."""


@chooses(Captioning)
def choose_captions(request: RecipeRequest) -> Recipe:
    """Choose a recipe for captions: an encoder as the recipe for the images alone has it, and a decoder that reads it.

    Raises ``UserError`` if the table has no images or other signals.
    """
    data = request.data
    roles = build_task(Captioning(), data).roles  # type: ignore[attr-defined]
    kind = data.processor or recognised(
        data.source, lambda: table_of(data.source, data, roles, "data.source"), data.columns
    )
    processor = kind or Images()
    data = data.changed(processor=processor)
    records = RecipeRequest(request.task, data, request.changes, request.machine).records
    stack = stack_for(request, processor, records, build_processor(processor).role.name)
    texts = [row["target"] for row in records.splits["train"]]
    width, length = 128, _length(texts)
    training = training_of(len(texts), _ROWS, _EPOCHS, request.machine.precision, validations=_VALIDATIONS)
    branches = (Attention(num_heads=4), CrossAttention(num_heads=4), FeedForward(hidden=2 * width))
    return Recipe(
        description=f"{counted(len(texts), 'caption')}: chosen for this data and this machine.",
        data=data.changed(
            columns={**data.columns, **records.columns},
            processor=stack.reader,
            tokenizer=WordPiece(vocab_size=_vocabulary(texts)),
            batching=RandomCrops(),
        ),
        model=Model(
            width=width,
            num_layers=2,
            context_length=length,
            frontend=Text(dropout=0.1),
            blocks=(Block(branches=branches, dropout=0.1),),
            encoder=encoder_of(stack.model),
        ),
        wide=Nearest(),
        task=request.task,
        training=training,
        sample=Generation(max_new_tokens=length - 1, temperature=0.0),
        quick=short_form(training.steps),
    )


def _length(texts: Sequence[str]) -> int:
    """Return the number of tokens of the longest captions, with a margin."""
    longest = float(np.quantile([len(text) for text in texts], 0.99)) / _CHARACTERS
    return min(_LONGEST, max(8, round(1.5 * longest) + 2))


def _vocabulary(texts: Sequence[str]) -> int:
    """Return the vocabulary size for captions."""
    words = len({word for text in texts for word in text.lower().split()})
    return max(200, min(8000, 2 * words))
