"""Choose a recipe for speech from text and this machine: codebooks, model and training length."""

from __future__ import annotations

from typing import Any

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.codec import Codec
from qkv.report.figures import counted
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.data import LengthBuckets
from qkv.spec.files.overrides import assignments
from qkv.spec.generation import Generation
from qkv.spec.model import Block, Model
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.spec.recipe import Recipe
from qkv.spec.signals.speech import SpeechCodes, SpeechHead, SpeechTokens
from qkv.spec.tasks import Speech
from qkv.system.errors import UserError

_CODEBOOKS = 4
"""Maximum number of codebooks: more give better sound, and take more data to predict."""
_EPOCHS, _MOST, _ROWS, _FEW = 60, 20_000, 32, 3_000
_LONGEST = 1_000
"""Maximum number of vectors of one spoken text."""
_RUN = ("data", "processor", "run")


@chooses(Speech)
def choose_speech(request: RecipeRequest) -> Recipe:
    """Choose a recipe for speech: a causal Transformer over characters and the first codes of the codec ``--codec``.

    Raises ``UserError`` if no codec is named.
    """
    named: dict[Any, Any] = {change.path: change.value for change in assignments(request.changes)}
    processor = request.data.processor or _codes(named.get(_RUN))
    assert isinstance(processor, SpeechCodes)
    data, precision = request.data.changed(processor=processor), request.machine.precision
    count = len(RecipeRequest(request.task, data, request.changes).values)
    width, layers = (128, 4) if count < _FEW else (192, 6)
    training = training_of(count, _ROWS, _EPOCHS, precision, most=_MOST, validated=40)
    books = f"{counted(processor.codebooks or 1, 'codebook')} of the codec"
    return Recipe(
        description=f"{counted(count, 'sound')}, {books}, {counted(layers, 'layer')} of width {width}: chosen for this "
        "data and this machine.",
        data=data.changed(batching=LengthBuckets(buckets=4)),
        model=_model(width, layers),
        task=request.task,
        training=training,
        sample=Generation(max_new_tokens=_LONGEST, temperature=0.8, top_k=50),
        quick=short_form(training.steps),
    )


def _codes(run: Any) -> SpeechCodes:
    if not isinstance(run, str):
        raise UserError(
            "speech is learned as codes of a neural codec: name one with --codec RUN; train it first with qkv train "
            "compress --data FILE"
        )
    most = Codec.read(run).head.part.quantizer.codebooks
    return SpeechCodes(run=run, codebooks=min(most, _CODEBOOKS))


def _model(width: int, layers: int) -> Model:
    attention = Attention(num_heads=width // 32, relative=Rope(), bias=False, qk_norm=RMSNorm())
    return Model(
        width=width,
        num_layers=layers,
        context_length=_LONGEST,
        frontend=SpeechTokens(positions=NoPositions()),
        blocks=(Block(branches=(attention, GatedFeedForward()), norm=RMSNorm(), dropout=0.1),),
        norm=RMSNorm(),
        head=SpeechHead(),
    )
