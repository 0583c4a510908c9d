"""Recipe that describes a published checkpoint as if it were a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkv.interop.files.places import PREPROCESSOR
from qkv.interop.images import has_processor
from qkv.interop.load import PublishedModel
from qkv.interop.sounds import reads_sound
from qkv.spec.data import Data
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Captioning, Chat, MaskedTokens, Matching, NextToken, SpeechToText, Task, Translation
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.spec.tokenizers import TokenizerFile
from qkv.system.errors import UserError
from qkv.tokenizers.folder import file_of_target
from qkv.tokenizers.tokenizer import Tokenizer

NOT_SAID = "not said"
"""Data source in the recipe of a checkpoint whose training data is unknown; to train or evaluate it, other data must be
named.
"""


def recipe_of(checkpoint: PublishedModel) -> Recipe:
    """Build a recipe that describes a published checkpoint as a run: its model, its tokenizer or processor, and the
    task of its head.
    """
    return Recipe(
        name=checkpoint.folder.name,
        description=f"{checkpoint.family}, published as {checkpoint.architecture}",
        data=_data(checkpoint),
        model=checkpoint.spec,
        task=_task(checkpoint),
        sample=checkpoint.sample,
    )


def _data(checkpoint: PublishedModel) -> Data:
    """Build the data settings of a published checkpoint: its tokenizer or its processor. Raises ``UserError`` if the
    processor is missing.
    """
    spec = checkpoint.spec
    needed = next(iter(spec.frontend.inputs_read.values()), (spec.encoder or spec).frontend).processor
    if needed is None:
        path, target = checkpoint.folder, file_of_target(checkpoint.folder)
        target_tokenizer = None if target is None else TokenizerFile(path=str(target))
        return Data(source=NOT_SAID, tokenizer=TokenizerFile(path=str(path)), target_tokenizer=target_tokenizer)
    if checkpoint.processor is None:
        alone = "use qkv.interop.load.load_published, which loads only the model"
        if not has_processor(spec) and not reads_sound(spec):
            unknown = f"{checkpoint.folder} does not specify how {needed.kind} are read and standardised"
            raise UserError(f"{unknown}, and no published folder of this kind does; {alone}")
        heard = reads_sound(spec)
        how = "sounds are resampled and converted" if heard else f"{needed.kind} are resized and standardised"
        raise UserError(
            f"{checkpoint.folder} holds no {PREPROCESSOR}, so it is not known how {how}; add that file, or {alone}"
        )
    if spec.head.reads_memory or spec.frontend.inputs_read:
        return Data(source=NOT_SAID, inputs=inputs_of(checkpoint))
    if spec.frontend.reads_tokens or spec.head.writes_text:
        tokenizer = TokenizerFile(path=str(checkpoint.folder))
        return Data(source=NOT_SAID, processor=checkpoint.processor, tokenizer=tokenizer)
    return Data(source=NOT_SAID, processor=checkpoint.processor)


def inputs_of(checkpoint: PublishedModel) -> dict[str, Processor | TokenizerSpec]:
    """Return the processor or tokenizer of each input of a model of images and texts, by the name of its column."""
    processor = checkpoint.processor
    assert processor is not None
    assert processor.role is not None
    return {processor.role.name: processor, "text": TokenizerFile(path=str(checkpoint.folder))}


def _task(checkpoint: PublishedModel) -> Task:
    if checkpoint.spec.head.reads_memory:
        return Matching()
    if checkpoint.spec.frontend.inputs_read:
        return Chat()
    if checkpoint.spec.encoder is not None and checkpoint.spec.head.predicts_tokens:
        tokenizer = checkpoint.target_tokenizer or checkpoint.tokenizer
        begin = pieces(checkpoint.folder, tokenizer, checkpoint.begin) if tokenizer else ()
        return writing_task(checkpoint.spec, begin).published()
    alone = "qkv.interop.load.load_published loads only the model"
    name = f"{checkpoint.folder}: {checkpoint.architecture} ({checkpoint.family})"
    if checkpoint.spec.encoder is not None:
        return _task_of_both(checkpoint, name, alone)
    return task_of_head(checkpoint.spec, name, alone)


def writing_task(model: Model, begin: tuple[str, ...] = ()) -> Task:
    """Return the task of an encoder–decoder that writes texts, by what its encoder reads. ``begin``: strings of the
    tokens with which the decoder starts.
    """
    if reads_sound(model):
        return SpeechToText(begin=begin)
    if has_processor(model):
        return Captioning(begin=begin)
    return Translation(begin=begin, framed=bool(begin))


def _task_of_both(checkpoint: PublishedModel, name: str, advice: str) -> Task:
    """Choose the task of an encoder–decoder whose head reads the decoder's last vector, as that of BART for classes.

    The decoder reads the text one token later, and the end token is the last. Raises ``UserError`` for other heads, and
    for a tokenizer that ends texts with another token.
    """
    task, tokenizer = task_of_head(checkpoint.spec, name, advice, encoder=True), checkpoint.tokenizer
    if tokenizer is None:
        return task.changed(begin=("</s>",))
    if tokenizer.frame.behind[-1:] != (tokenizer.specials.get("eos"),):
        raise UserError(f"{name} reads its answer at the end token, which its tokenizer does not put last; {advice}")
    return task.changed(begin=pieces(checkpoint.folder, tokenizer, checkpoint.begin[:1]))


def task_of_head(model: Model, name: str, advice: str = "name the task", encoder: bool = False) -> Task:
    """Choose the task of a model from its head, if it is not known how the model was trained. ``name``: name of the
    model in messages. ``encoder``: whether the task may need a beginning of the decoder's input. Raises ``UserError``
    with ``advice`` if no task has such a head.
    """
    if model.head.predicts_tokens:
        if model.encoder:
            return writing_task(model)
        return NextToken() if model.causal else MaskedTokens()
    tasks = [task for task in Task.kinds().values() if task.head == model.head.serves and task.reads == "examples"]
    if model.encoder is not None:
        tasks = [task for task in tasks if encoder and "begin" in task.model_fields]
    if model.encoder is not None and not tasks:
        head = f"has a head of the kind {model.head.kind!r} on an encoder–decoder"
        raise UserError(f"{name} {head}, which no task of qkv uses; {advice}")
    if not tasks:
        raise UserError(f"{name} has a head of the kind {model.head.kind!r}, which no task of qkv uses; {advice}")
    # Tagging words and labelling nodes use the same head; a model of text must get the task on texts.
    of_text = model.frontend.processor is None
    return min(tasks, key=lambda task: task.reads_signals == of_text)().published()


def pieces(folder: Path, tokenizer: Tokenizer, begin: Sequence[int]) -> tuple[str, ...]:
    """Decode ``begin``, the ids with which the decoder of the checkpoint in ``folder`` starts, to token strings. Raises
    ``UserError`` if the tokenizer lacks one.
    """
    named = [tokenizer.core.id_to_token(index) for index in begin]
    texts = tuple(piece for piece in named if piece is not None)
    if len(texts) < len(named):
        unknown = begin[named.index(None)]
        raise UserError(f"texts of {folder} begin with the token id {unknown}, which its tokenizer does not have")
    return texts
