"""A recipe for a text of any size on the machine at hand: tokenizer, model and length of training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from qkv.data.sources import resolve
from qkv.inspection.cost import cost
from qkv.inspection.machine import Machine, store_machine, stored_machine
from qkv.inspection.probe import probe
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.data import Data
from qkv.spec.model import Block, Model, Text
from qkv.spec.overrides import override, quick_form
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import BPE, Characters, Tokenizer
from qkv.spec.training import Checkpoints, Muon, Training, Validation, WarmupStableDecay

MINUTES = 5.0
"""How long a text is trained on."""

_BATCH = 16
_HEAD = 32
_VOCABULARIES = (512, 1024, 2048, 4096, 8192)


class _Size(NamedTuple):
    layers: int
    width: int


_SIZES = (_Size(2, 64), _Size(3, 96), _Size(4, 128), _Size(4, 192), _Size(6, 256), _Size(6, 384), _Size(8, 512), _Size(12, 768))


class _Fit(NamedTuple):
    """A model, how many steps the time allows, and the loss to be expected."""

    model: Model
    steps: int
    loss: float


def automatic(source: str, overrides: Iterable[str] = (), quick: bool = False, machine: Machine | None = None) -> Recipe:
    """A recipe for the text ``source``, a file or a known data set, that trains about ``MINUTES`` on ``machine`` (default: this one).

    Tokenizer: characters for a short text, else byte-pair encoding whose vocabulary grows with the text. Size: of a ladder of models the
    one with the least loss to be expected after that time, see ``expected_loss``. Raises ``UserError`` if the text cannot be read.
    """
    found = resolve(source).train.size()
    tokenizer = _tokenizer(found.bytes)
    vocabulary, characters = (tokenizer.vocab_size, 3.0) if isinstance(tokenizer, BPE) else (128, 1.0)
    tokens = max(1.0, 0.9 * found.characters / characters)
    machine = machine or _machine()
    best = min((_fit(size, tokens, vocabulary, machine) for size in _SIZES), key=lambda fit: fit.loss)
    # The vocabulary that training fills in is the tokenizer's own.
    model = best.model.changed(frontend=Text(positions=NoPositions()))
    recipe = Recipe(
        name=Path(source).stem,
        description=f"Tokenizer, size and steps chosen for this text of {found.characters:,} characters and this machine.",
        data=Data(source=source, tokenizer=tokenizer),
        model=model,
        training=_training(best.steps),
        quick={"training.steps": max(1, best.steps // 10), "training.validation.every": max(1, best.steps // 40)},
    )
    return override(recipe, [*(quick_form(recipe.quick) if quick else ()), *overrides])


def expected_loss(parameters: float, tokens: float, distinct: float) -> float:
    """Nats a token above those that no model can save: A / P^0.34 + B / D^0.28, A = 406.4, B = 410.7 (Hoffmann et al. 2022).

    A text of ``distinct`` tokens read R + 1 times is worth D = U (1 + 15.4 (1 - exp(-R / 15.4))) new ones (Muennighoff et al. 2023). The
    constants are those of large models on web text; only the order of the sizes is used.
    """
    repeats = max(0.0, tokens / distinct - 1)
    worth = min(tokens, distinct) * (1 + 15.4 * (1 - math.exp(-repeats / 15.4)))
    return 406.4 / parameters**0.34 + 410.7 / worth**0.28


def _fit(size: _Size, tokens: float, vocabulary: int, machine: Machine) -> _Fit:
    context = _context(tokens)
    branches = (Attention(num_heads=max(1, size.width // _HEAD), relative=Rope(), bias=False, qk_norm=True), GatedFeedForward())
    model = Model(
        width=size.width,
        num_layers=size.layers,
        context_length=context,
        frontend=Text(vocab_size=vocabulary, positions=NoPositions()),
        blocks=(Block(branches=branches, norm=RMSNorm()),),
        norm=RMSNorm(),
    )
    costs = cost(model, _BATCH, training=_training(1))
    steps = max(20, int(60 * MINUTES * costs.speed(machine).train / (_BATCH * context)))
    return _Fit(model, steps, expected_loss(costs.parameters, steps * _BATCH * context, tokens))


def _context(tokens: float) -> int:
    """128, or less where the tenth of the text that is held out is shorter."""
    return next((length for length in (128, 64, 32, 16, 8) if tokens / 9 > 2 * length), 4)


def _tokenizer(size: int) -> Tokenizer:
    wanted = size / 1000
    return (
        Characters()
        if wanted < _VOCABULARIES[0] / 2
        else BPE(vocab_size=max(v for v in _VOCABULARIES if v == _VOCABULARIES[0] or v <= wanted))
    )


def _training(steps: int) -> Training:
    return Training(
        steps=steps,
        batch_size=_BATCH,
        optimizer=Muon(),
        schedule=WarmupStableDecay(warmup=min(20, steps // 10), decay=0.5),
        validation=Validation(every=max(1, steps // 10)),
        checkpoints=Checkpoints(every=max(1, steps // 10)),
    )


def _machine() -> Machine:
    """This machine's figures, measured once and kept."""
    known = stored_machine()
    if known is None:
        known = probe()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs the measurement each time
            store_machine(known)
    return known
