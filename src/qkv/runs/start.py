"""Training that starts from the weights of another run or of a published checkpoint: pretraining, then fine-tuning
(Howard & Ruder 2018; Devlin et al. 2019). "Start" is that run or checkpoint.

Model settings that the recipe omits, or leaves at their defaults, are taken from the start, with the head that the task
needs; so are the settings of its processor (size, mean and deviation of images). All tensors of the stack are copied,
so the architectures must agree. Of embedding tables, the rows that both models have are copied: a vocabulary may gain
special tokens, and a position table may be longer or shorter; new rows are initialised at random. Position vectors on
another grid, for images of another size, are resampled (Dosovitskiy et al. 2021). A head of another kind is initialised
at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT
from qkv.data.vocabulary import TARGET_FILE, Vocabulary
from qkv.interop.checkpoint import PublishedCheckpoint, open_checkpoint
from qkv.interop.files.places import CONFIG, MODULES, PREPROCESSOR, is_published, is_sentence_folder, may_be_name
from qkv.interop.images import read_processor
from qkv.interop.load import read_published
from qkv.interop.mapping.family import read_spec
from qkv.interop.mapping.task_heads import head_tensors, task_heads
from qkv.interop.sentence import SentencePooling, read_pooling
from qkv.interop.sounds import read_sound_processor, reads_sound
from qkv.interop.writing import beginning, named_ends, transcript_beginning
from qkv.layers.layout import WHOLE, Layout, layouts
from qkv.layers.linear.lora import folded
from qkv.layers.positions import regridded
from qkv.models.transformer import Transformer
from qkv.runs.start_decoder import as_decoder, as_encoder_decoder, of_language_model
from qkv.runs.storage.checkpoint import of_model, weights
from qkv.runs.storage.files import read_tensors
from qkv.runs.storage.folder import SPEC, WEIGHTS
from qkv.runs.storage.identity import MADE_WITH, check_unedited
from qkv.runs.storage.published import pieces, writing_task
from qkv.spec.data import Data
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.heads import Head, LanguageModelHead, Pooled
from qkv.spec.model import Model
from qkv.spec.models.adapt import LoRA
from qkv.spec.models.start import DecoderStart
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Task
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.spec.tokenizers import TokenizerFile
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.folder import file_of_target
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

_HEAD = "head."
"""Prefix of the names of weights that belong to a task, not to the stack."""
_MARKS = ("begin", "framed")
"""Settings of text-to-text tasks that determine the begin tokens and special tokens of a text."""


_OF_BLOCKS = ("width", "num_layers", "blocks", "norm")
"""Fields of a model that its blocks and their weights depend on."""
_BLOCKS = ("blocks.", "norm.")
"""Beginnings of the names of the weights of blocks and of the final norm."""


class StartModel(NamedTuple):
    """Model, tokenizers and processors of the run or checkpoint that a recipe fine-tunes. ``model`` is None if the
    folder holds weights without a spec; ``tokenizer`` is None if the model neither reads nor generates text.
    """

    model: Model | None
    tokenizer: TokenizerSpec | None
    target_tokenizer: TokenizerSpec | None
    heads: Mapping[str, Head] = MappingProxyType({})
    """Heads of a published checkpoint, by kind of head."""
    task: Task | None = None
    inputs: Mapping[str, Processor | TokenizerSpec] = MappingProxyType({})
    """Fitted processor of each input by name, or its tokenizer if the input is a text; empty if a text is the only
    input.
    """
    ends: tuple[int, ...] = ()
    """Ids of the tokens that end a text of a language model."""

    @property
    def processor(self) -> Processor | None:
        """Processor of the only input, if it is not text; else None."""
        reader = self.inputs.get(INPUT)
        return reader if isinstance(reader, Processor) else None


def with_start(recipe: Recipe, previous: Recipe | None = None) -> Recipe:
    """Fill in a recipe's tokenizer or processor, and its model, from the run or checkpoint that its ``start`` names.
    When the run ``previous`` is resumed, fill them in from the recipe ``previous`` instead.

    Raises ``UserError`` if the start does not exist, if the recipe has another tokenizer or another kind of processor,
    or if the model does not fit the task.
    """
    if not recipe.training.adapt.adds_matrices:
        check_trainable(recipe, recipe.name or "the recipe")
    source = recipe.start.checkpoint
    if source is None:
        return _with_blocks(recipe, previous)
    if previous and previous.start.checkpoint == source:
        tokenizers = previous.data.tokenizer, previous.data.target_tokenizer
        ends = previous.sample.stop_token_ids
        inputs = previous.data.inputs or previous.data.processors
        start = StartModel(previous.model, *tokenizers, task=previous.task, inputs=inputs, ends=ends)
    else:
        start = find_start(source)
        if isinstance(recipe.start, DecoderStart):
            start = _decoder(recipe, recipe.start, start)
    recipe = _with_tokenizers(recipe, start)
    recipe = recipe.changed(data=with_inputs_of(start, recipe.data, source))
    recipe = recipe.changed(task=_written_alike(recipe.task, start.task)) if start.task else recipe
    if start.ends and not recipe.sample.stop_token_ids and recipe.task.head == LanguageModelHead().serves:
        recipe = recipe.changed(sample=recipe.sample.changed(stop_token_ids=start.ends))
    return recipe if start.model is None else recipe.changed(model=_described(recipe, start.model, start.heads))


def _with_blocks(recipe: Recipe, previous: Recipe | None) -> Recipe:
    """Return the recipe with width, blocks and norm of the run whose blocks it begins with, unless it sets them."""
    source = recipe.start.blocks_of
    if source is None:
        return recipe
    model = previous.model if previous and previous.start == recipe.start else find_start(source).model
    if model is None:
        raise UserError(f"start: {source!r} holds weights without a {SPEC}, so its blocks are unknown")
    default = Model()
    missing = [name for name in _OF_BLOCKS if getattr(recipe.model, name) == getattr(default, name)]
    changed = recipe.model.changed(**{name: getattr(model, name) for name in missing})
    return recipe.changed(model=changed)


def _decoder(recipe: Recipe, part: DecoderStart, start: StartModel) -> StartModel:
    """Return the encoder–decoder whose decoder is the language model ``start``. Raises ``UserError``."""
    if start.model is None:
        raise UserError(f"start: {part.source!r} has weights and no description of a model; name a run")
    return start._replace(model=as_encoder_decoder(start.model, part, recipe.model), heads={}, task=None)


def find_start(source: str) -> StartModel:
    """Read model spec and tokenizers of a run folder, a folder in Hugging Face format, or a published name. Raises
    ``UserError``.
    """
    folder = Path(source).expanduser()
    if _is_run(folder):
        target = TokenizerFile(path=str(folder / TARGET_FILE)) if (folder / TARGET_FILE).exists() else None
        recipe = read_recipe(folder) if (folder / SPEC).is_file() else None
        if recipe:
            check_trainable(recipe, str(folder))
        inputs = _inputs(recipe.data, folder) if recipe else {}
        absent = inputs and not (folder / FILE_NAME).is_file()
        tokenizer = None if absent else TokenizerFile(path=str(folder / FILE_NAME))
        task, ends = recipe and recipe.task, recipe.sample.stop_token_ids if recipe else ()
        return StartModel(recipe and recipe.model, tokenizer, target, task=task, inputs=inputs, ends=ends)
    if is_published(folder) or is_sentence_folder(folder) or (not folder.exists() and may_be_name(source)):
        published, pooling = _opened(source)
        model = read_spec(*published.family(), published.config())
        task = _published_task(published, model) if model.encoder else None
        heads = task_heads(published, pooling, model)
        processor = read_processor(published.folder, model) or read_sound_processor(published.folder, model)
        inputs: dict[str, Processor | TokenizerSpec] = {} if processor is None else {INPUT: processor}
        if model.frontend.processor is not None:
            return StartModel(model, None, None, heads, task, inputs)
        template = published.family()[0].template or None
        tokenizer, file = (
            TokenizerFile(path=str(published.tokenizer_folder), chat_template=template),
            file_of_target(published.tokenizer_folder),
        )
        if processor is not None and processor.role is not None and model.frontend.inputs_read:
            inputs = {processor.role.name: processor, "text": tokenizer}
        target = None if file is None else TokenizerFile(path=str(file))
        ends = named_ends(published.folder, published.config()) if model.encoder is None else ()
        return StartModel(model, tokenizer, target, heads, task, inputs, ends)
    raise UserError(
        f"start: {source!r} is neither a trained run nor a published checkpoint: it holds no {WEIGHTS} and no {CONFIG}"
    )


def _inputs(data: Data, folder: Path) -> dict[str, Processor | TokenizerSpec]:
    """Read the fitted processors and the tokenizer of the inputs of the run in ``folder``; empty if a text is the only
    input.
    """
    if not data.processors and not data.inputs:
        return {}
    fitted, tokenizer = Vocabulary.load(folder).processors, TokenizerFile(path=str(folder / FILE_NAME))
    return {name: fitted.get(name, tokenizer) for name in data.readers}


def check_trainable(recipe: Recipe, place: str) -> None:
    """Raise ``UserError`` if the weights at ``place`` are quantised: rounding would undo small training steps."""
    if recipe.quantized is not None:
        raise UserError(
            f"{place} is quantised to {recipe.quantized.bits} bits and cannot be trained; "
            "train or fine-tune the original run, and quantise the result; or train adapters beside quantised weights: "
            "start from the original run with training.adapt=lora and quantized.bits=8"
        )


def _opened(source: str) -> tuple[PublishedCheckpoint, SentencePooling | None]:
    """Open the published checkpoint ``source``; return it with the pooling of its sentence-transformers files, None
    without such files.
    """
    pooling = read_pooling(Path(source).expanduser())
    published = open_checkpoint(pooling.body if pooling else source)
    return published, pooling or read_pooling(published.folder)


def _published_task(published: PublishedCheckpoint, model: Model) -> Task:
    """Build the task that writes texts with the begin and end tokens that a published encoder–decoder uses."""
    begun = transcript_beginning if reads_sound(model) else beginning
    ids = begun(published.folder, published.config())
    tokens = Tokenizer.load(file_of_target(published.tokenizer_folder) or published.tokenizer_folder)
    begin = pieces(published.folder, tokens, ids)
    return writing_task(model, begin)


def _is_run(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file() and ((folder / SPEC).is_file() or not is_published(folder))


def with_inputs_of(start: StartModel, data: Data, source: str) -> Data:
    """Return a copy of ``data`` with the inputs of ``start``; settings of ``data`` take precedence. ``source``: name of
    the start. Raises ``UserError`` if inputs differ in name or kind.
    """
    if not data.inputs and (not start.inputs or INPUT in start.inputs):
        return _with_processor_of(start, data, source)
    if not data.inputs and data.processor is None:
        return data.changed(inputs=start.inputs)
    readers = data.readers
    if set(readers) != set(start.inputs):
        names = ", ".join(readers)
        inputs = ", ".join(each.kind if name == INPUT else name for name, each in start.inputs.items()) or "one text"
        raise UserError(f"data.inputs: {names} given, but the start {source!r} reads {inputs}; omit the key")
    return data.changed(inputs={name: _continue(name, readers[name], start.inputs[name], source) for name in readers})


def _continue(name: str, reader: Any, start: Any, source: str) -> Any:
    """Return ``reader``, the processor or tokenizer of the input ``name``, completed with settings of ``start``. Raises
    ``UserError`` if it is of another kind.
    """
    if isinstance(reader, Processor) and isinstance(start, type(reader)):
        return reader.following(start)
    if reader == start:
        return reader
    raise UserError(
        f"data.inputs.{name}: {reader.kind} given, but the start {source!r} reads {start.kind} with its own settings; "
        "omit data.inputs"
    )


def _with_processor_of(start: StartModel, data: Data, source: str) -> Data:
    """Return a copy of ``data`` with the processor of ``start``; settings of ``data`` take precedence. ``source``: name
    of the start. Raises ``UserError`` if both read different kinds of signals.
    """
    start_processor, processor = start.processor, data.processor
    stack = start.model and (start.model.encoder or start.model)
    needed = stack and stack.frontend.processor
    if processor is not None and start_processor is not None and processor == type(processor)() and processor.of_sounds:
        return data.changed(processor=start_processor) if start_processor.of_sounds else data
    if processor is not None and start.model and not (needed and isinstance(processor, needed)):
        read = "text" if needed is None else needed.kind
        raise UserError(f"data.processor: the data are read as {processor.kind}, but the start {source!r} reads {read}")
    if needed is not None and processor is None and start_processor is None:
        raise UserError(
            f"start: {source!r} holds no {PREPROCESSOR}, so it is not known how {needed.kind} are resized and "
            "standardised; add that file, or set data.processor"
        )
    if processor is None or start_processor is None:
        return data if start_processor is None else data.changed(processor=start_processor)
    return data.changed(processor=processor.following(start_processor))


def _with_tokenizers(recipe: Recipe, start: StartModel) -> Recipe:
    scheme, tokenizer, target = recipe.data.tokenizer, start.tokenizer, start.target_tokenizer
    if tokenizer is None:
        return recipe
    if scheme not in (tokenizer, Data.model_fields["tokenizer"].default):
        raise UserError(
            f"data.tokenizer: {scheme.kind!r} differs from the tokenizer of {recipe.start.checkpoint!r}, so its token "
            "ids do not fit the embeddings; omit the key to use the tokenizer of the start"
        )
    return recipe.changed(data=recipe.data.changed(tokenizer=tokenizer, target_tokenizer=target))


def _written_alike(task: Task, start: Task) -> Task:
    """Return ``task`` with the begin and end tokens of the task ``start``, with which the model was trained, unless the
    recipe sets them.
    """
    both = [name for name in _MARKS if name in type(task).model_fields and name in type(start).model_fields]
    return task.changed(
        **{name: getattr(start, name) for name in both if getattr(task, name) == type(task).model_fields[name].default}
    )


def _described(recipe: Recipe, start: Model, heads: Mapping[str, Head]) -> Model:
    """Return the model spec of the start, changed by every setting of the recipe that differs from the defaults."""
    default = Model()
    written = {"head", "blocks", "num_layers"} if isinstance(recipe.start, DecoderStart) else {"head"}
    fields = [name for name in Model.model_fields if name not in written]
    settings = {
        name: getattr(recipe.model, name) for name in fields if getattr(recipe.model, name) != getattr(default, name)
    }
    inherited: dict[str, Any] = {"frontend": _open(start.frontend)}
    if start.encoder:
        inherited["encoder"] = start.encoder.changed(frontend=_open(start.encoder.frontend))
    return start.changed(**{**inherited, **settings, "head": _head(recipe, start, heads)})


def _open(frontend: Any) -> Any:
    """Return the front end without a fixed vocabulary size, which the tokenizer then determines; special tokens may
    increase it.
    """
    return frontend.unsized()


def _head(recipe: Recipe, start: Model, heads: Mapping[str, Head]) -> Head:
    """Choose the head spec: the recipe's head if set; else the start's head if it suits the task; else the head in
    ``heads``; else a new head.
    """
    recipe_head, kind = recipe.model.head, recipe.task.head
    if recipe_head != LanguageModelHead():
        return recipe_head
    head = start.head if start.head.serves == kind else heads.get(kind)
    if head is not None:
        return head.unsized()
    part = Head.kinds()[kind]
    # A bidirectional encoder learned its vectors by masked tokens, so no single vector represents the text: take the
    # mean. In a causal model, only the last position has seen the whole text.
    return part.parse({"pooling": "last" if start.causal else "mean"} if "pooling" in part.model_fields else {})


def start_weights(model: Transformer, recipe: Recipe) -> list[str]:
    """Copy the weights of the recipe's ``start``, a run or checkpoint, into ``model``; return notices. Raises
    ``UserError`` if they do not fit.
    """
    source = recipe.start.checkpoint
    if recipe.start.blocks_of is not None:
        return [_take_blocks(model, recipe.start.blocks_of)]
    if source is None:
        return []
    folder = Path(source).expanduser()
    published, pooling = (None, None) if _is_run(folder) else _opened(source)
    tensors, there = _of_published(published) if published else _of_run(folder)
    model_tensors, stored = weights(model), layouts(model)
    stack = {name for name in model_tensors if not name.startswith(_HEAD)}
    if isinstance(recipe.start, DecoderStart):
        tensors, stack = as_decoder(tensors), of_language_model(stack)
    _check_names(stack, {name for name in tensors if not name.startswith(_HEAD)}, source)
    head = {name for name in model_tensors if name.startswith(_HEAD)}
    fits = all(name in tensors and _fits(stored[name], model_tensors[name], tensors[name]) for name in head)
    resampled = list[str]()
    for name in sorted(stack | head if fits else stack):
        if stored[name].kind == "grid" and stored[name].sizes != there(name).sizes:
            tensors[name] = _resampled(tensors[name], there(name), stored[name], name, source)
            resampled.append(_grids(there(name), stored[name]))
        _take(model_tensors[name], tensors[name], name, source, stored[name])
    some = _part_of_head(model_tensors, published, model) if published and not fits else set()
    rest = "" if fits else f"; its head is initialised at random{', except ' * bool(some)}{', '.join(sorted(some))}"
    begun = f"the model is initialised with the weights of {source!r}{rest}"
    return [begun, *resampled, *_folder_notices(model, pooling, source), *_new_rows(model, model_tensors, tensors)]


@torch.no_grad()
def _take_blocks(model: Transformer, source: str) -> str:
    """Copy the weights of the blocks and the final norm of ``source``; return a notice. Raises ``UserError``."""
    folder = Path(source).expanduser()
    tensors, _ = _of_run(folder) if _is_run(folder) else _of_published(_opened(source)[0])
    tensors_to_set = {name: each for name, each in weights(model).items() if name.startswith(_BLOCKS)}
    stored = {name: tuple(each.shape) for name, each in tensors.items() if name.startswith(_BLOCKS)}
    if stored != {name: tuple(each.shape) for name, each in tensors_to_set.items()}:
        sentence = "differ from those of the recipe; leave out width, num_layers, blocks and norm of the model"
        raise UserError(f"start: the blocks of {source!r} {sentence}")
    for name, each in tensors_to_set.items():
        each.copy_(tensors[name])
    return f"the blocks are those of {source!r}; the front end and the head are initialised at random"


def _folder_notices(model: Transformer, pooling: SentencePooling | None, source: str) -> list[str]:
    """Return notices on the pooling of a sentence-transformers folder, and on modules of the folder that the model
    lacks.
    """
    head = model.spec.head
    if pooling is None or not isinstance(head, Pooled):
        return []
    left = f"; its modules {', '.join(pooling.unread)} are not used" if pooling.unread else ""
    if head.unsized() != pooling.head(type(head), getattr(head, "dropout", 0.0)):
        return [f"the head does not pool as {source}/{MODULES} says, but as the recipe does{left}"]
    scaled = ", scaled to one length" if pooling.normalise else ""
    return [f"the head reads the pooling {' and '.join(pooling.poolings)}{scaled}, as {source}/{MODULES} says{left}"]


@torch.no_grad()
def _part_of_head(model_tensors: dict[str, Tensor], published: PublishedCheckpoint, model: Transformer) -> set[str]:
    """Copy head tensors that a published checkpoint contains although it was saved with another head (such as a
    pooler); return their names.
    """
    tensors = head_tensors(published, model)
    for name, tensor in tensors.items():
        if name in model_tensors:
            model_tensors[name].copy_(tensor)
    return tensors.keys() & model_tensors.keys()


_LayoutOf = Callable[[str], Layout]
"""Function that maps the name of a tensor of the start to its layout."""


def _of_published(published: PublishedCheckpoint) -> tuple[dict[str, Tensor], _LayoutOf]:
    """Read (name -> weights of a published checkpoint, function that returns the layout of each)."""
    model = read_published(published, "fp32").model
    return weights(model), lambda name: layouts(model)[name]


def _of_run(folder: Path) -> tuple[dict[str, Tensor], _LayoutOf]:
    """Read (name -> weights of the model of the run in ``folder``, with adapters merged; function that returns the
    layout of each).
    """
    stored, metadata = read_tensors(folder / WEIGHTS)
    tensors = of_model(stored)
    recipe = read_recipe(folder) if (folder / SPEC).is_file() else None
    check_unedited(metadata.get(MADE_WITH), recipe, folder)
    part = recipe and recipe.training.adapt
    return folded(tensors, part.scale) if isinstance(part, LoRA) else tensors, partial(_layout_in, recipe)


def _layout_in(recipe: Recipe | None, name: str) -> Layout:
    """Return the layout of the tensor ``name`` in the model of ``recipe``; ``WHOLE`` if recipe or tensor is unknown."""
    if recipe is None:
        return WHOLE
    with torch.device("meta"):
        return layouts(Transformer(recipe.model)).get(name, WHOLE)


def _resampled(table: Tensor, before: Layout, after: Layout, name: str, source: str) -> Tensor:
    resampled = regridded(table, before, after)
    if resampled is None:
        raise UserError(
            f"start: {name!r} has a grid of {_grid(after)} positions, to which the positions of {source!r} cannot be "
            "resampled"
        )
    return resampled


def _grids(before: Layout, after: Layout) -> str:
    return f"the position vectors are resampled from a grid of {_grid(before)} to {_grid(after)}"


def _grid(layout: Layout) -> str:
    return " × ".join(map(str, layout.sizes))


def _fits(layout: Layout, new: Tensor, old: Tensor) -> bool:
    """Return True if ``old`` can be copied to ``new``: both have the same shape, or are tables with rows of the same
    shape.
    """
    if layout.kind == "rows":
        return new.shape[1:] == old.shape[1:]
    return new.shape == old.shape


def _new_rows(model: Transformer, model_tensors: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """Return notices on token embeddings that have more rows than those of the start."""
    stacks = {"": model, "encoder.": model.encoder}
    paths = (
        f"{path}frontend.table"
        for path, stack in stacks.items()
        if stack is not None and stack.frontend.table is not None
    )
    tables = [path for path in paths if path in model_tensors and path in tensors]
    grown = {name: model_tensors[name].shape[0] - tensors[name].shape[0] for name in tables}
    return [
        f"{rows:,} rows of {name} belong to added tokens and are initialised at random"
        for name, rows in grown.items()
        if rows > 0
    ]


def _check_names(names: set[str], there: set[str], source: str) -> None:
    missing, left = sorted(names - there), sorted(there - names)
    if missing:
        raise UserError(
            f"start: the model has the tensor {missing[0]!r}, but {source!r} does not; "
            f"{nearest(missing[0], left or there)}"
        )
    if left:
        raise UserError(
            f"start: {source!r} has the tensor {left[0]!r}, but the model does not; use the model settings of the start"
        )


@torch.no_grad()
def _take(new: Tensor, old: Tensor, name: str, source: str, layout: Layout) -> None:
    """Copy the tensor ``old`` to ``new``; of tables with different numbers of rows, copy the rows that both have."""
    if new.shape == old.shape:
        new.copy_(old)
    elif _fits(layout, new, old):
        rows = min(new.shape[0], old.shape[0])
        new[:rows] = old[:rows].to(new)
    else:
        raise UserError(
            f"start: {name!r} has the shape {tuple(new.shape)} in the model and {tuple(old.shape)} in {source!r}; "
            "use the same sizes in both"
        )
