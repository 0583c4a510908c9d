"""Choose a recipe that fine-tunes an existing model on a running text: task, window length and training length."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from qkv.choosing.describe import as_asked
from qkv.choosing.finetune import adapt_of, finetuned
from qkv.choosing.signals.settings import MINUTES
from qkv.data.corpora.sources import TextSource, resolve
from qkv.report.figures import counted
from qkv.runs.start import StartModel, find_start
from qkv.spec.data import Data, RandomCrops
from qkv.spec.generation import Generation
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.task import Task
from qkv.spec.tasks import MaskedTokens, NextToken
from qkv.spec.tokenizers import TokenizerFile
from qkv.spec.training import Training
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

_BATCH = 8
_LONGEST = 256
"""Maximum number of tokens per window: longer windows leave few steps within the budget."""
_SHORTEST = 4
_NEW = 200
"""Number of tokens of a generated sample."""


def finetuned_on_text(
    source: str, start: str, adapt: str | None = None, overrides: Iterable[str] = (), quick: bool = False
) -> Recipe:
    """Choose a recipe that trains the model ``start``, a run or a published checkpoint, on the text ``source`` within
    ``MINUTES``.

    The task is the one ``start`` was trained for, if that task reads running text. Otherwise it is ``next_token`` for a
    causal model and ``masked_tokens`` for a bidirectional model. A window has at most ``_LONGEST`` tokens, and few
    enough that the held-out tenth of the text holds two windows; the model keeps its context length. ``adapt``,
    ``quick``: see ``finetuned`` and ``automatic``. Raises ``UserError`` for a model that reads no running text.
    """
    begun, text = find_start(start), resolve(source).train
    task, characters = _task(begun, start), text.characters()
    tokens = characters * _tokens_per_character(text, begun)
    window = _window(tokens, begun.model.context_length if begun.model else _LONGEST)
    data = Data(source=source, batching=RandomCrops(window=window))
    plain = Recipe(name=Path(source).stem, data=data, task=task, training=Training(batch_size=_BATCH, minutes=MINUTES))
    overrides = list(overrides)
    recipe = finetuned(plain, start, adapt_of(adapt, overrides), max(1, int(tokens / window)))
    described = (
        f"{characters:,} characters in windows of {counted(window, 'token')}, from {start}, "
        f"adapt: {recipe.training.adapt.kind}: chosen for this text."
    )
    sample = Generation(max_new_tokens=max(1, min(_NEW, recipe.model.context_length - 1)))
    return as_asked(recipe.changed(description=described, sample=sample), quick, overrides)


def _task(begun: StartModel, start: str) -> Task:
    """Choose the task on a running text. Raises ``UserError`` for a model that cannot be trained on running text."""
    model = begun.model
    if begun.tokenizer is None or (model is not None and model.frontend.processor is not None):
        raise UserError(
            f"the model {start!r} reads no text, so it cannot be fine-tuned on a text; "
            "give --data a table of the data that it reads"
        )
    if begun.task is not None and begun.task.reads == "text":
        return begun.task
    if model is not None and model.encoder is not None:
        raise UserError(
            f"the encoder–decoder {start!r} generates text from an input, so it cannot be trained on a running text; "
            "give --data a table of pairs, as for 'qkv train translate' or 'qkv train summarize'"
        )
    return NextToken() if model is None or model.causal else MaskedTokens()


def _tokens_per_character(text: TextSource, begun: StartModel) -> float:
    """Estimate the tokens per character from the beginning of the text."""
    assert isinstance(begun.tokenizer, TokenizerFile)
    beginning = "".join(islice(text.blocks(0, min(text.characters(), 20_000)), 1))
    tokenizer = Tokenizer.load(begun.tokenizer.path)
    return len(tokenizer.core.encode(beginning).ids) / max(1, len(beginning))


def _window(tokens: float, context: int) -> int:
    """Choose the tokens per window: a power of two for which the held-out tenth of the text holds two windows, or the
    context length if that is shorter.
    """
    window = _LONGEST
    while window > _SHORTEST and tokens / 10 < 2 * window:
        window //= 2
    return min(window, context)
