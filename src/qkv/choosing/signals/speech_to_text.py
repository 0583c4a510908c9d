"""Choose a recipe that transcribes sounds by an encoder–decoder, such as Whisper: model and training length."""

from __future__ import annotations

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import LengthBuckets
from qkv.spec.generation import Generation
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Rope, Sinusoidal
from qkv.spec.recipe import Recipe
from qkv.spec.signals.sound import MelConvolutions
from qkv.spec.tasks import SpeechToText
from qkv.system.errors import UserError

_EPOCHS, _ROWS, _MOST_TOKENS = 40, 8, 448
_WIDTH, _LAYERS = 128, 3


@chooses(SpeechToText)
def choose_speech_to_text(request: RecipeRequest) -> Recipe:
    """Choose a recipe that transcribes by an encoder–decoder; a start replaces its model.

    Raises ``UserError`` for data of another kind than sounds.
    """
    data, part = request.data, request.data.processor
    if part is None or not part.of_sounds:
        kind = "text" if part is None else part.kind
        raise UserError(f"{data.source!r} is read as {kind}, and the model transcribes sounds; give a column of files")
    processor = build_processor(part).fitted(request.values)
    written = max((len(row["target"]) for row in request.records.splits["train"]), default=1)
    training = training_of(len(request.values), _ROWS, _EPOCHS, request.machine.precision)
    return Recipe(
        description=f"{counted(len(request.values), 'sound')}: chosen for this data and this machine.",
        data=data.changed(
            columns={**data.columns, **request.records.columns},
            processor=processor,
            batching=LengthBuckets(buckets=4),
        ),
        model=_model(min(_MOST_TOKENS, written + 2)),
        task=request.task,
        training=training,
        sample=Generation(temperature=0.0),
        quick=short_form(training.steps),
    )


def _model(tokens: int) -> Model:
    """Return a small encoder–decoder for texts of up to ``tokens`` tokens."""
    heads, feed_forward = _WIDTH // 32, FeedForward(hidden=4 * _WIDTH)
    encoder = Encoder(
        num_layers=_LAYERS,
        frontend=MelConvolutions(positions=Sinusoidal()),
        blocks=(Block(branches=(Attention(num_heads=heads, mask=Full(), relative=Rope()), feed_forward), dropout=0.1),),
    )
    reading = (Attention(num_heads=heads), CrossAttention(num_heads=heads), feed_forward)
    return Model(
        width=_WIDTH,
        num_layers=_LAYERS,
        context_length=tokens,
        encoder=encoder,
        blocks=(Block(branches=reading, dropout=0.1),),
    )
