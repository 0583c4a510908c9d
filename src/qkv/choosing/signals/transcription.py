"""Choose a recipe that transcribes signals to text by CTC: front end, model and training length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import MINUTES, short_form
from qkv.data.processors.processor import build_processor
from qkv.data.records.columns.series_values import array_of
from qkv.data.records.sounds.sound_files import sound_length
from qkv.data.records.values import Unusable
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import LengthBuckets
from qkv.spec.frontends import Frontend
from qkv.spec.heads import CTCHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.parts import Rope, Sinusoidal
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.sound_tasks import TextSearch
from qkv.spec.signals.series import Series, SeriesPatches
from qkv.spec.signals.sound import FrameMasks, LogMel, MelConvolutions, Sounds, WaveConvolutions
from qkv.spec.tasks import Transcription
from qkv.spec.training import AdamW, Checkpoints, Cosine, Training, Validation
from qkv.system.errors import UserError

_EPOCHS, _FEWEST, _PATIENCE = 60, 400, 8
_FEW, _ROWS = 2_000, 16
_SAMPLE = 500
_COUNTED = 300_000
"""Maximum number of characters whose n-grams are counted."""
_POSITIONS = 3
"""Positions for each token of a text; alignments need at least one, and a blank between equal neighbours."""


class _Input(NamedTuple):
    """Fitted processor, front end for it, largest number of positions of a row, and words for the size of the data."""

    processor: Processor
    frontend: Frontend
    positions: int
    described: str


@chooses(Transcription)
def choose_transcription(request: RecipeRequest) -> Recipe:
    """Choose a recipe that transcribes by CTC: a Transformer that sees whole rows over about 3 positions a token.

    Raises ``UserError`` for data of another kind than sounds and series.
    """
    data, processor = request.data, request.data.processor
    read = next((read for kind, read in _READERS.items() if isinstance(processor, kind)), None)
    if read is None:
        kind = "text" if processor is None else processor.kind
        kinds = ", ".join(each.__name__.lower() for each in _READERS)
        raise UserError(
            f"{data.source!r} is read as {kind}, and a recipe that transcribes reads {kinds}; write a recipe"
        )
    source = read(request)
    count = len(request.values)
    training = _training(count, request)
    return Recipe(
        description=f"{source.described}: chosen for this data and this machine.",
        data=data.changed(
            columns={**data.columns, **request.records.columns},
            processor=source.processor,
            batching=LengthBuckets(buckets=8),
        ),
        model=_model(count, source),
        task=request.task.changed(search=_search(request)),
        training=training,
        quick=short_form(training.steps),
    )


def _search(request: RecipeRequest) -> TextSearch:
    """Choose how texts are searched: by beams with n-grams of the training texts, unless the task says how or these
    texts are so long that counts of all n-grams need much memory.
    """
    search: TextSearch = request.task.search  # type: ignore[attr-defined]
    characters = sum(len(str(row["transcript"])) for row in request.records.splits["train"])
    return TextSearch(beams=16, ngram=6) if search == TextSearch() and characters <= _COUNTED else search


def _series(request: RecipeRequest) -> _Input:
    """Return the input of rows that are series: patches that overlap by half."""
    assert request.data.processor is not None
    processor = build_processor(request.data.processor).fitted(request.values)
    assert isinstance(processor, Series)
    lengths, tokens = list[int](), list[int]()
    rows = request.records.splits["train"]
    for row in rows[:: max(1, len(rows) // _SAMPLE)]:
        try:
            lengths.append(len(array_of(row["series"], processor.channels)))
            tokens.append(len(row["transcript"]))
        except Unusable:
            continue
    ratio = np.quantile(np.array(lengths or [1]) / np.maximum(1, tokens or [1]), 0.05)
    stride = max(1, round(float(ratio) / _POSITIONS))
    frontend = SeriesPatches(
        patch=2 * stride, stride=stride, channels="mixed", normalise="none", positions=Sinusoidal(), dropout=0.1
    )
    longest = max(lengths, default=1)
    described = f"{len(request.values):,} series of {counted(len(processor.channels), 'channel')}"
    return _Input(processor, frontend, frontend.patches(longest), described)


def _sounds(request: RecipeRequest) -> _Input:
    """Return the input of sounds: log-mel frames, every second to eighth of which is a position after convolutions."""
    part = request.data.processor
    assert isinstance(part, Sounds)
    if part == LogMel():
        part = LogMel(form="log", normalise="clip", changes=(FrameMasks(),))
    processor = build_processor(part).fitted(request.values)
    assert isinstance(processor, Sounds)
    lengths, tokens = list[float](), list[int]()
    rows = request.records.splits["train"]
    for row in rows[:: max(1, len(rows) // _SAMPLE)]:
        try:
            lengths.append(min(processor.longest, sound_length(row["sound"])[0]))
            tokens.append(len(row["transcript"]))
        except Unusable:
            continue
    frontend = _of_waves() if processor.of_samples else _of_frames(processor, lengths, tokens)
    size = processor.values_of(processor.samples(max(lengths, default=1.0)))
    described = f"{len(request.values):,} sounds of up to {max(lengths, default=0.0):.1f} s"
    return _Input(processor, frontend, frontend.positions_of(size), described)


def _of_frames(processor: Processor, lengths: Sequence[float], tokens: Sequence[int]) -> MelConvolutions:
    """Return the front end of log-mel frames with about 3 positions a token of a fast speaker, at most every eighth."""
    assert isinstance(processor, LogMel)
    seconds = float(np.quantile(np.array(lengths or [1.0]) / np.maximum(1, tokens or [1]), 0.05))
    frames = 1000 * seconds / processor.hop / _POSITIONS
    halvings = min(3, max(1, math.floor(math.log2(max(1.0, frames)))))
    strides = (1, 2) if halvings == 1 else (2,) * halvings
    return MelConvolutions(kernels=(3,) * len(strides), strides=strides, positions=Sinusoidal(), dropout=0.1)


def _of_waves() -> WaveConvolutions:
    return WaveConvolutions(channels=(128,) * 7, near=32, groups=8, dropout=0.1)


_READERS: dict[type[Processor], Callable[[RecipeRequest], _Input]] = {Sounds: _sounds, Series: _series}
"""Processor -> function that chooses the input for it."""


def _model(count: int, source: _Input) -> Model:
    width, layers = (96, 3) if count < _FEW else (144, 4)
    attention = Attention(num_heads=width // 24, mask=Full(), relative=Rope(), dropout=0.1)
    return Model(
        width=width,
        num_layers=layers,
        context_length=source.positions,
        frontend=source.frontend,
        blocks=(Block(branches=(attention, FeedForward(hidden=4 * width, activation="silu")), dropout=0.1),),
        head=CTCHead(dropout=0.1),
    )


def _training(count: int, request: RecipeRequest) -> Training:
    """Return the training of ``count`` rows; the weights of the lowest token error are kept."""
    epoch = max(1, count // _ROWS)
    steps = max(_FEWEST, _EPOCHS * epoch)
    every = max(20, min(steps // 15, 2 * epoch))
    return Training(
        steps=steps,
        minutes=MINUTES,
        batch_size=_ROWS,
        optimizer=AdamW(lr=2e-3, weight_decay=0.02),
        precision=request.machine.precision,
        schedule=Cosine(warmup=min(200, steps // 8), final=0.01),
        validation=Validation(every=every, batches=20, patience=_PATIENCE, best="token_error"),
        checkpoints=Checkpoints(every=every),
    )
