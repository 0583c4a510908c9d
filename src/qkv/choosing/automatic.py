"""Choose a recipe for a text of any size and this machine: tokenizer, model size and training length."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from qkv.choosing.describe import as_asked
from qkv.choosing.signals.settings import MINUTES
from qkv.costs.cost import cost
from qkv.costs.measuring.machine import Machine, fits_memory
from qkv.costs.measuring.probe import this_machine
from qkv.data.corpora.sources import resolve
from qkv.report.figures import counted
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.data import Data
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import BPE, Characters, Tokenizer
from qkv.spec.training import Checkpoints, Muon, Training, Validation, WarmupStableDecay

EPOCHS = 16
"""Maximum number of epochs: beyond it, models of these sizes overfit."""

_BATCH = 8
_HEAD = 32
_FEWEST = 300
"""Minimum number of steps: with fewer, samples do not resemble even a tiny text."""
_VOCABULARIES = (512, 1024, 2048, 4096)
_CHARACTERS = 3.0
"""Approximate characters per token with a byte-pair vocabulary of one of the above sizes."""


class _Size(NamedTuple):
    layers: int
    width: int


_SIZES = (
    _Size(2, 64),
    _Size(3, 96),
    _Size(4, 128),
    _Size(4, 192),
    _Size(6, 256),
    _Size(6, 384),
    _Size(8, 512),
    _Size(12, 768),
)


class _Fit(NamedTuple):
    """Candidate model for a text: its parameters, the memory of a training step in bytes, the steps expected within the
    budget, and the expected loss in nats per token.
    """

    model: Model
    parameters: int
    memory: int
    steps: int
    loss: float


def automatic(
    source: str, overrides: Iterable[str] = (), quick: bool = False, machine: Machine | None = None
) -> Recipe:
    """Choose a recipe for the text ``source``, a file or a named data set, with a budget of ``MINUTES``, or of
    ``training.minutes`` in ``overrides``.

    Tokenizer: characters for a short text, else byte-pair encoding with a vocabulary that grows with the text. Model
    size: the size with the lowest ``expected_loss`` within the budget on ``machine`` (default: this machine), with at
    most 4 parameters per token of the text, and a training step that fits into memory. Steps: ``EPOCHS`` epochs, or as
    many steps as fit into the budget.

    ``quick``: use the short form of the recipe. Raises ``UserError`` if the text cannot be read.
    """
    changes, machine = list(overrides), machine or this_machine()

    def within(minutes: float) -> Recipe:
        return as_asked(_chosen(source, minutes, machine), quick, changes)

    recipe = within(MINUTES)
    budget = recipe.training.minutes
    return recipe if budget in (None, MINUTES) else within(budget)


def _chosen(source: str, minutes: float, machine: Machine) -> Recipe:
    characters = resolve(source).train.characters()
    tokenizer = _tokenizer(characters)
    vocabulary = tokenizer.num_ids or 128
    tokens = max(1.0, characters / (_CHARACTERS if tokenizer.num_ids else 1.0))
    fits = [_fit(size, tokens, vocabulary, minutes, machine) for size in _SIZES]
    best = min(
        [fits[0], *(fit for fit in fits if fit.parameters <= 4 * tokens and fits_memory(fit.memory))],
        key=lambda fit: fit.loss,
    )
    model = best.model.changed(frontend=Text(positions=NoPositions()))  # the tokenizer sets the vocabulary size
    return Recipe(
        name=Path(source).stem,
        description=f"{characters:,} characters, {_named(tokenizer)}, {counted(len(model.layers), 'layer')} of width "
        f"{model.width}: chosen for this text and this machine.",
        data=Data(source=source, tokenizer=tokenizer),
        model=model,
        training=_training(max(_FEWEST, round(EPOCHS * tokens / (_BATCH * model.context_length))), minutes, machine),
        quick={"training.steps": max(1, best.steps // 10), "training.validation.every": max(1, best.steps // 40)},
    )


def expected_loss(parameters: float, tokens: float, distinct: float) -> float:
    """Return the expected reducible loss in nats per token: A / P^0.34 + B / D^0.28, A = 406.4, B = 410.7 (Hoffmann et
    al. 2022), with P = ``parameters``.

    Training on ``tokens`` tokens reads the text, which has U = ``distinct`` tokens, R + 1 times. This counts as D = U
    (1 + 15.4 (1 - exp(-R / 15.4))) unique tokens (Muennighoff et al. 2023). The constants were fitted to large models
    on web text; they are only used to rank model sizes.
    """
    repeats = max(0.0, tokens / distinct - 1)
    worth = min(tokens, distinct) * (1 + 15.4 * (1 - math.exp(-repeats / 15.4)))
    return 406.4 / parameters**0.34 + 410.7 / worth**0.28


def _fit(size: _Size, tokens: float, vocabulary: int, minutes: float, machine: Machine) -> _Fit:
    context = _context(tokens)
    branches = (
        Attention(num_heads=max(1, size.width // _HEAD), relative=Rope(), bias=False, qk_norm=RMSNorm()),
        GatedFeedForward(),
    )
    model = Model(
        width=size.width,
        num_layers=size.layers,
        context_length=context,
        frontend=Text(vocab_size=vocabulary, positions=NoPositions()),
        blocks=(Block(branches=branches, norm=RMSNorm()),),
        norm=RMSNorm(),
    )
    training = _training(1, minutes, machine)
    estimate = cost(model, _BATCH, precision=training.precision, training=training)
    read = min(60 * minutes * estimate.speed(machine).train, EPOCHS * tokens)
    steps = max(_FEWEST, round(read / (_BATCH * context)))
    return _Fit(
        model,
        estimate.parameters,
        estimate.memory.peak,
        steps,
        expected_loss(estimate.parameters, steps * _BATCH * context, tokens),
    )


def _context(tokens: float) -> int:
    """Choose the context length for a text of ``tokens`` tokens: the largest power of two from 8 to 128 for which the
    held-out tenth of the text has more than two contexts, else 4.
    """
    return next((length for length in (128, 64, 32, 16, 8) if tokens / 10 > 2 * length), 4)


def _tokenizer(characters: int) -> Tokenizer:
    """Choose the tokenizer for a text of ``characters`` characters: the largest byte-pair vocabulary for which the text
    has at least 500 characters per token type, else single characters.
    """
    fitting = [vocabulary for vocabulary in _VOCABULARIES if 500 * vocabulary <= characters]
    return BPE(vocab_size=fitting[-1]) if fitting else Characters()


def _named(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.num_ids:,} byte pairs" if tokenizer.num_ids else tokenizer.kind


def _training(steps: int, minutes: float, machine: Machine) -> Training:
    return Training(
        steps=steps,
        minutes=minutes,
        batch_size=_BATCH,
        optimizer=Muon(),
        precision=machine.precision,
        schedule=WarmupStableDecay(warmup=min(20, steps // 10), decay=0.5),
        validation=Validation(every=max(1, steps // 10)),
        checkpoints=Checkpoints(every=max(1, steps // 10)),
    )
