"""Choose a recipe that fine-tunes an existing model on a table: learning rate and training length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qkv.choosing.signals.settings import short_form
from qkv.runs.start import find_start, with_start
from qkv.spec.branches import FeedForward
from qkv.spec.data import Data
from qkv.spec.files.overrides import Assignment, assignments
from qkv.spec.model import Block, Model
from qkv.spec.models.adapt import Adapt
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.start import CheckpointStart, DecoderStart
from qkv.spec.parts import Gated
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.task import Task
from qkv.spec.training import AdamW, LinearDecay, Training

_RATE = (5e-5, 768)
"""(learning rate, width): learning rate for fine-tuning all weights at this width (Devlin et al. 2019), inversely
proportional to the width.
"""
_MOST = 5e-3
_EPOCHS = 10
"""Maximum number of epochs; fine-tuning needs fewer than training from scratch."""
_FEWEST = 100
_HEADS = 4
"""Heads of the cross-attention that a decoder gains."""


def adapt_of(adapt: str | None, overrides: Iterable[str | Assignment]) -> Any:
    """Return the parameters to train, ``training.adapt`` of ``overrides`` or else ``adapt``: the learning rate depends
    on them.
    """
    values = [change.value for change in assignments(overrides) if change.path == ("training", "adapt")]
    return values[-1] if values else adapt


def finetuned(recipe: Recipe, start: str, adapt: Any, examples: int) -> Recipe:
    """Turn ``recipe``, which trains from scratch, into a recipe that fine-tunes ``start``, with the same data, batches
    and task.

    ``start``: a run or a published checkpoint; ``adapt``: parameters to train ("whole", "head", "lora(8)");
    ``examples``: number of training examples. Raises ``UserError`` if ``start`` does not exist or does not fit the
    task.
    """
    data = recipe.data.changed(tokenizer=Data.model_fields["tokenizer"].default, target_tokenizer=None)
    training = recipe.training
    part = Training.parse({"adapt": adapt}, "--adapt").adapt if adapt else training.adapt
    if _is_decoder(recipe, start):
        return _of_decoder(recipe.changed(data=data), start, part, examples)
    recipe = with_start(recipe.changed(data=data, model=Model(), start=CheckpointStart(source=start)))
    training = training.changed(
        adapt=part,
        steps=max(_FEWEST, _EPOCHS * max(1, examples // training.batch_size)),
        optimizer=AdamW(lr=_rate(part, recipe.model.width, recipe.task), beta2=0.999, weight_decay=0.01),
        schedule=LinearDecay(warmup=10),
    )
    every = max(10, min(training.steps // 10, examples // training.batch_size // 2))
    training = training.changed(
        schedule=LinearDecay(warmup=training.steps // 10),
        validation=training.validation.changed(every=every),
        checkpoints=training.checkpoints.changed(every=every),
    )
    return recipe.changed(
        training=training,
        description=f"{examples:,} examples, from {start}, adapt: {part.kind}: chosen for this data and this machine.",
        sample=recipe.sample.changed(max_new_tokens=max(1, recipe.model.context_length - 1)),
        quick=short_form(training.steps),
    )


def _is_decoder(recipe: Recipe, start: str) -> bool:
    """Return True if ``start`` is a language model, and ``recipe`` writes about a signal that an encoder reads."""
    model = None if recipe.model.encoder is None else find_start(start).model
    return model is not None and model.encoder is None and not (model.frontend.processor or model.frontend.inputs_read)


def _of_decoder(recipe: Recipe, start: str, part: Adapt, examples: int) -> Recipe:
    """Turn a recipe with an encoder into one whose decoder is the language model ``start``. Encoder and
    cross-attention are new, so learning rate and training length are those of a training from scratch.
    """
    reading = Block(branches=(CrossAttention(num_heads=_HEADS), FeedForward()), residual=Gated())
    model = Model(encoder=recipe.model.encoder, blocks=(reading,))
    recipe = with_start(recipe.changed(model=model, start=DecoderStart(source=start)))
    return recipe.changed(
        training=recipe.training.changed(adapt=part),
        description=f"{examples:,} examples, with the decoder {start}: chosen for this data and this machine.",
    )


def _rate(part: Adapt, width: int, task: Task) -> float:
    rate, at = _RATE
    factor = part.rate_factor * (task.whole_rate_factor if part.trains_all else 1.0)
    value = min(_MOST, rate * at / width * factor)
    return float(f"{value:.1g}")
