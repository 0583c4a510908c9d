"""Choose a recipe for a table of examples and this machine: tokenizer, model, batches and training length per task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.choosing.describe import as_asked
from qkv.choosing.finetune import adapt_of, finetuned
from qkv.choosing.guessed import with_processor
from qkv.choosing.mixed_columns import with_inputs
from qkv.choosing.signals.pairs.mixed import choose_mixed
from qkv.choosing.signals.register import Choice, RecipeRequest, choice_for, has_choice
from qkv.choosing.signals.settings import MINUTES, short_form
from qkv.choosing.verbs import reads_any_signal, task_written, tunes
from qkv.costs.cost import cost
from qkv.costs.measuring.machine import Machine, fits_memory
from qkv.data.features.ngrams import words_of
from qkv.data.records.model import Records
from qkv.runs.start import find_start, with_inputs_of
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import Data, LengthBuckets, TokenBuckets
from qkv.spec.files.overrides import assignments, override
from qkv.spec.frontends import HashedWords
from qkv.spec.generation import Generation
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.models.wide import Ngrams
from qkv.spec.parts import Learned, NoPositions, NoRelative, Relative, Rope
from qkv.spec.processors import WordFeatures
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import SpeechToText
from qkv.spec.tasks import Task as TaskSpec
from qkv.spec.tokenizers import Characters, Tokenizer
from qkv.spec.training import AdamW, Checkpoints, Cosine, Training, Validation
from qkv.system.errors import UserError, nearest
from qkv.tasks.baselines.baselines import NGRAMS_PER_WORD, too_large
from qkv.tasks.registry import tasks
from qkv.tasks.task import Defaults

_FEWEST = 200
_PATIENCE = 6
_MANY = 20_000
"""Number of rows from which shallow models are regularised less."""
_CHARACTERS = 3.0
"""Approximate characters per token of a text with spaces."""
_VOCABULARIES = (512, 1024, 2048, 4096, 8192)
_BUCKETS = tuple(1 << bits for bits in range(14, 19))
_HEAD = 32
_INDEPENDENT = NoRelative()
_PROCESSOR = ("data", "processor")
"""Path of the field ``processor`` in a recipe."""


class _Sizes(NamedTuple):
    """Statistics of the training split: number of examples, total characters, and (mean, 99th percentile) of the tokens
    per input (``read``) and per generated output (``written``). If inputs are read as words, ``read`` is (mean,
    maximum) of the words per input.
    """

    examples: int
    characters: int
    read: tuple[float, float]
    written: tuple[float, float]


def task_of(kind: str) -> TaskSpec:
    """Build the spec of a task of this kind, with its default settings. Raises ``UserError`` if such a task is not
    trained on a table of examples.
    """
    parts = {
        part.kind: part
        for part, implementer in tasks().items()
        if implementer.automatic is not None or has_choice(part)
    }
    if kind not in parts:
        raise UserError(f"the task {kind!r} cannot be trained on a table of examples; {nearest(kind, parts)}")
    defaults = tasks()[parts[kind]].automatic
    return parts[kind].parse(dict(defaults.fields) if defaults else {})


def _defaults(part: type[TaskSpec]) -> Defaults:
    defaults = tasks()[part].automatic
    assert defaults is not None
    return defaults


def automatic_task(
    kind: str,
    data: Mapping[str, Any],
    overrides: Iterable[str] = (),
    quick: bool = False,
    machine: Machine | None = None,
    start: str | None = None,
    adapt: str | None = None,
) -> Recipe:
    """Choose a recipe for the task ``kind`` on a table, with a budget of ``MINUTES``, or of ``training.minutes`` in
    ``overrides``. ``data``: fields of ``qkv.spec.data.Data`` that name the table and its columns.

    The model is a small Transformer: an encoder with the task's head, or an encoder–decoder if text is generated.
    Vocabulary, width and context length grow with the data; longer texts are read in windows. An encoder with one
    output per row is combined with a linear model on n-grams (``qkv.training.wide``). Tagging reads words as
    features and predicts by a conditional random field. Training stops after the epochs of the task's ``Defaults``, or
    early when validation stops improving.

    With ``start``, a run or a published checkpoint, that model is fine-tuned instead, also combined with n-grams.
    ``adapt``: parameters to train ("whole", "head", "lora(8)"). Without a start, several models compete in heats
    (``qkv.training.race.heats``).

    Raises ``UserError`` for an unusable table.
    """
    kind, data = _of_start(kind, data, start)
    request = _recipe_request(task_of(kind), data, overrides, machine, start, adapt)
    processor = request.data.processor
    choice = choice_for(request.task) or _joined(request) or choice_for(processor)
    if choice is None:
        if processor is not None:
            raise UserError(
                f"no recipe can be chosen automatically for data of the kind {processor.kind!r} yet; write a recipe"
            )
        return _for_texts(request, quick, start, adapt)
    chosen = choice(request).changed(name=name_of(request.data.source))
    if start is not None:
        part = adapt_of(adapt, request.changes)
        chosen = _begun(finetuned(chosen.changed(candidates={}), start, part, len(request.records.splits["train"])))
    elif adapt is not None:
        chosen = override(chosen, [f"training.adapt={adapt}"])
    recipe = _within_memory(chosen)
    raced = not quick and not any(change.path[0] == "model" for change in assignments(request.changes))
    return as_asked(recipe if raced else recipe.changed(candidates={}), quick, request.changes)


def _joined(request: RecipeRequest) -> Choice | None:
    """Return the function that chooses a recipe for several inputs that are read together; None for one input."""
    return choose_mixed if request.data.inputs and request.task.joins_inputs else None


def _of_start(kind: str, data: Mapping[str, Any], start: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the task and its data: a transcription that an encoder–decoder continues is written by its decoder."""
    task = find_start(start).task if start is not None and task_written(kind) else None
    if task is None or task.kind != task_written(kind):
        return kind, data
    columns = {"target" if role == "transcript" else role: name for role, name in data.get("columns", {}).items()}
    return task.kind, {**data, "columns": columns} if columns else data


def _begun(recipe: Recipe) -> Recipe:
    """Return the recipe with texts that fit behind the tokens with which a transcript begins, which name a language;
    the description says them.
    """
    begin: tuple[str, ...] = getattr(recipe.task, "begin", ()) if recipe.task.kind == SpeechToText.kind else ()
    if not begin:
        return recipe
    sample = recipe.sample.changed(max_new_tokens=max(1, recipe.model.context_length - len(begin)))
    description = f"{recipe.description} Its texts begin with {''.join(begin)} (task.begin)."
    return recipe.changed(description=description, sample=sample)


def _for_texts(request: RecipeRequest, quick: bool, start: str | None, adapt: str | None) -> Recipe:
    """Choose a recipe for texts. It has candidates, except if it is quick or fine-tunes a model."""
    recipe = _of_texts(request, start, adapt)
    if start is None and adapt is None and not quick:
        recipe = _racing(recipe, request.records, request.changes)
    return as_asked(_within_memory(recipe), quick, request.changes)


def _recipe_request(
    task: TaskSpec,
    data: Mapping[str, Any],
    overrides: Iterable[str],
    machine: Machine | None,
    start: str | None,
    adapt: str | None,
) -> RecipeRequest:
    """Build the request for a recipe, with the processor of the data and of ``start``. Raises ``UserError`` if
    ``start`` or ``adapt`` is given for a task without fine-tuning.
    """
    changes = list(overrides)
    data_spec, note = _with_processor_named(Data.parse(dict(data)), changes), ""
    if choice_for(task) is None or reads_any_signal(task.kind):
        data_spec, note = with_inputs(data_spec, task, guess=start is None)
        data_spec = data_spec if data_spec.inputs else with_processor(data_spec, task)
        if start is not None:
            data_spec = _with_processor_of(start, data_spec, changes)
    elif (start is not None or adapt is not None) and not tunes(task.kind):
        sentence = f"models of the task {task.kind!r} are not fine-tuned by this command"
        raise UserError(f"{sentence}; omit --from and --adapt")
    return RecipeRequest(task, data_spec, changes, machine, note)


def _with_processor_named(data: Data, changes: Sequence[str]) -> Data:
    """Return ``data`` with the processor and its settings that ``changes`` set. If no override sets the processor
    itself, return ``data`` unchanged.
    """
    entries = list(assignments(changes))
    if not any(change.path == _PROCESSOR for change in entries):
        return data
    return override(data, [change.below("data") for change in entries if change.path[:2] == _PROCESSOR])


def _with_processor_of(start: str, data: Data, changes: Sequence[str]) -> Data:
    """Return a copy of ``data`` with the processor of ``start``, except for the settings that ``changes`` override.
    Raises ``UserError`` if ``start`` reads another kind of data.
    """
    origin = find_start(start)
    if origin.inputs and data.processor is None:
        kinds = ", ".join(each.kind for each in origin.inputs.values())
        read = f"{data.source!r} is read as text, but the model {start!r} reads {kinds}"
        raise UserError(f"data.source: {read}; set data.source to such data, or choose another model")
    if data.processor is None:
        return data
    processor_changes = [change.below("data") for change in assignments(changes) if change.path[:2] == _PROCESSOR]
    return with_inputs_of(origin, override(data, processor_changes), start)


def _of_texts(request: RecipeRequest, start: str | None, adapt: str | None) -> Recipe:
    """Choose a recipe for texts that trains one model, without candidates, from scratch or from ``start``."""
    task, data, records = request.task, request.data, request.records
    plan, unsegmented = _defaults(type(task)), _are_unsegmented(records, task)
    sizes = _sizes(records, plan, 1.0 if unsegmented else _CHARACTERS)
    tokenizer = _tokenizer(plan, sizes, unsegmented)
    width, layers = _width(sizes.examples, plan)
    model = _writer(width, layers, sizes, plan) if plan.writes else _reader(width, layers, sizes, plan, task)
    wide = wide_path(records, plan) if plan.target else None
    best = "loss" if wide and start is None else plan.best
    training, batching = _training(sizes, width, request.machine, plan, best)
    recipe = Recipe(
        name=name_of(data.source),
        description=_described(sizes.examples, f"{_read(model, tokenizer)}, {_stack(model)}"),
        data=data.changed(tokenizer=tokenizer, batching=batching),
        model=model,
        wide=wide,
        task=task,
        training=training,
        sample=Generation(max_new_tokens=model.context_length - 1, temperature=0.0 if plan.writes else 1.0),
        quick=short_form(training.steps),
    )
    if start is not None:
        recipe = finetuned(recipe, start, adapt_of(adapt, request.changes), sizes.examples)
    elif adapt is not None:
        recipe = override(recipe, [f"training.adapt={adapt}"])
    return _windowed(recipe, sizes, plan)


def _are_unsegmented(records: Records, task: TaskSpec) -> bool:
    """Return True if the task has one output per row and the texts are written without spaces."""
    plan = _defaults(type(task))
    return bool(plan.target) and _unsegmented(_texts(records, plan))


def _racing(recipe: Recipe, records: Records, overrides: Sequence[str]) -> Recipe:
    """Add candidates to the recipe, if its task has one output per row and no override sets the model or a setting that
    a candidate changes.
    """
    if not _defaults(type(recipe.task)).target:
        return recipe
    count, unsegmented = len(records.splits["train"]), _are_unsegmented(records, recipe.task)
    candidates = _candidates(recipe.task, count, unsegmented)
    if any(_decides(change.path, candidates) for change in assignments(overrides)):
        return recipe
    models = f"{len(candidates)} models in short heats" + " beside n-grams" * (recipe.wide is not None)
    return recipe.changed(candidates=candidates, description=_described(count, models))


def _tokenizer(plan: Defaults, sizes: _Sizes, unsegmented: bool) -> Tokenizer:
    """Choose the tokenizer of the recipe's own model, which no candidate changes; its vocabulary grows with the
    data.
    """
    if plan.words:
        return Data.model_fields["tokenizer"].default
    ids = next((size for size in reversed(_VOCABULARIES) if 120 * size <= sizes.characters), _VOCABULARIES[0])
    return Characters() if unsegmented else plan.tokenizer(ids)


def _decides(path: tuple[str, ...], candidates: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if an override of ``path`` sets the model or a setting that a candidate changes."""
    settings = {tuple(name.split(".")) for changes in candidates.values() for name in changes}
    return path[0] == "model" or any(path[: len(each)] == each[: len(path)] for each in settings)


def _candidates(task: TaskSpec, examples: int, unsegmented: bool) -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats for a table with one output per text: name -> overrides of the recipe.

    ``attention`` and ``convolution`` are shallow and strongly regularised, for few rows: one block without norm, words
    instead of subwords, and no positions except relative positions. ``encoder`` is the model of the recipe itself, for
    more rows.
    """
    dropout = 0.5 if examples < _MANY else 0.3
    small: dict[str, Any] = {
        **({} if unsegmented else {"data.tokenizer": "word_list(vocab_size=10000)"}),
        "model.num_layers": 1,
        "model.frontend.positions": "none",
        "model.frontend.dropout": dropout,
        "model.head": {"kind": task.head, "pooling": ["max", "mean"], "dropout": dropout},
        "training.optimizer.lr": 1e-3,
    }

    def block(branch: Any) -> list[dict[str, Any]]:
        return [{"branches": [branch], "norm": "none", "dropout": dropout}]

    attention = {"kind": "attention", "num_heads": 8, "mask": "full", "relative": "rope"}
    return {
        "attention": {**small, "model.width": 192, "model.blocks": block(attention)},
        "convolution": {**small, "model.width": 384, "model.blocks": block("convolution(5)")},
        "encoder": {},
    }


def _windowed(recipe: Recipe, sizes: _Sizes, plan: Defaults) -> Recipe:
    """Return a copy of the recipe whose task reads long texts in windows of the context length, if it has one target
    per row; else return the recipe.
    """
    if not plan.target:
        return recipe
    windows = _windows(sizes.read[1], recipe.model.context_length)
    return recipe.changed(task=recipe.task.changed(windows=windows))


def _within_memory(recipe: Recipe) -> Recipe:
    """Return the recipe with its batch size halved until a training step on rows of the full context length fits into
    memory.
    """
    while recipe.training.batch_size > 1 and not fits_memory(_bytes(recipe)):
        training = recipe.training.changed(batch_size=recipe.training.batch_size // 2)
        recipe = recipe.changed(data=recipe.data.changed(batching=recipe.data.batching.halved()), training=training)
    return recipe


def _bytes(recipe: Recipe) -> int:
    """Estimate the memory of a training step in bytes, without head and token embeddings; 0 if the cost or size of a
    part is unknown.
    """

    def counted(stack: Any) -> Any:
        processor = recipe.data.processor
        sized = stack.frontend.fitted(processor) if processor else stack.frontend.unsized().sized(2)
        return stack.changed(frontend=sized)

    model, training = recipe.model, recipe.training
    model = model.changed(context_length=recipe.data.batching.tokens_of_window or model.context_length)
    try:
        encoder = model.encoder and counted(model.encoder)
        head = LanguageModelHead(tied=False) if model.head.predicts_tokens else model.head.unsized().sized(2)
        bare = counted(model.changed(encoder=encoder, head=head))
        rows = training.batch_size * getattr(recipe.task, "windows", 1)
        return cost(bare, rows, precision=training.precision, training=training).memory.peak
    except UserError:
        return 0


def name_of(source: str) -> str:
    """Return a name for a run on the file ``source``: its base name without extensions. For two files "a | b", use the
    first.
    """
    name = Path(source.partition("|")[0].strip()).name
    return name.removesuffix(".gz").rpartition(".")[0] or name


def _described(examples: int, models: str) -> str:
    return f"{examples:,} examples, {models}: chosen for this data and this machine."


def _stack(model: Model) -> str:
    size = f"{len(model.layers)} layer{'s' * (len(model.layers) != 1)} of width {model.width}"
    return f"an encoder and a decoder of {size}" if model.encoder else f"an encoder of {size}"


def _read(model: Model, tokenizer: Tokenizer) -> str:
    words, ids = model.frontend.words, tokenizer.num_ids
    if words:
        return f"{words.buckets:,} word features"
    return tokenizer.kind if ids is None else f"{ids:,} ids ({tokenizer.kind})"


def _sizes(records: Records, plan: Defaults, per_token: float) -> _Sizes:
    """Compute statistics of the training split; a token has about ``per_token`` characters."""
    rows = records.splits["train"]
    read = np.array([sum(_length(row.get(role, "")) for role in plan.reads) for row in rows])
    written = np.array([_length(row[plan.writes]) for row in rows]) if plan.writes else np.zeros(1)
    characters = int(read.sum() + written.sum())
    if plan.words:  # use the maximum: a longer context only adds cost for rows that are longer
        words = np.array([sum(len(row[role]) for role in plan.reads) for row in rows])
        return _Sizes(len(rows), characters, (float(words.mean()), float(words.max())), (0.0, 0.0))
    sides = [(float(side.mean()) / per_token, float(np.quantile(side, 0.99)) / per_token) for side in (read, written)]
    return _Sizes(len(rows), characters, sides[0], sides[1])


def _length(value: Any) -> int:
    """Count the characters of a text, or of a list of words, with a space after each."""
    return len(value) if isinstance(value, str) else sum(len(word) + 1 for word in value)


def _context(longest: float, lengths: tuple[int, ...]) -> int:
    """Choose the context length: the shortest of ``lengths`` that holds 1.5 times ``longest`` tokens, else the
    largest.
    """
    return next((length for length in lengths if 1.5 * longest + 4 <= length), lengths[-1])


_MOST_WINDOWS = 8
_POSITIONS = 4096
"""Approximate number of positions in a batch of texts that are read in windows."""
_UNSEGMENTED = 12
"""Mean number of characters per word above which texts count as written without spaces."""
_OUTPUTS = 1 << 22
"""Maximum product of the number of hash buckets and the number of outputs."""


def _windows(longest: float, context: int) -> int:
    """Choose the number of windows of ``context`` tokens that hold nearly all texts. ``longest``: 99th percentile of
    the text lengths in tokens.
    """
    return max(1, min(_MOST_WINDOWS, math.ceil(1.2 * longest / (0.8 * context))))


def _texts(records: Records, plan: Defaults) -> list[str]:
    """Return the texts of the training split; the two texts of a pair are joined."""
    return [" | ".join(row[role] for role in plan.reads if row.get(role)) for row in records.splits["train"]]


def _unsegmented(texts: Sequence[str]) -> bool:
    """Return True if the texts are written without spaces, such as Chinese and proteins."""
    return sum(map(len, texts)) > _UNSEGMENTED * sum(len(text.split()) for text in texts)


def wide_path(records: Records, plan: Defaults) -> Ngrams | None:
    """Choose the wide path for the texts of the training split; None if a linear model for them would be too large.

    It has about twice as many hash buckets as there are distinct n-grams. For texts without spaces, n-grams of one and
    two characters are counted, too.
    """
    rows = records.splits["train"]
    texts = _texts(records, plan)
    outputs = len({row[plan.target] for row in rows}) if isinstance(rows[0][plan.target], str) else 1
    if too_large(texts, outputs):
        return None
    word_lists = [words_of(text) for text in texts]
    words = {word for each in word_lists for word in each}
    unsegmented = _unsegmented(texts)
    features = max(NGRAMS_PER_WORD * len(words), sum(map(len, texts)) // 4 if unsegmented else 0)
    most = max(1 << 10, min(1 << 18, _OUTPUTS // outputs))
    buckets = min(1 << max(14, (2 * features - 1).bit_length()), 1 << (most.bit_length() - 1))
    return Ngrams(least=1 if unsegmented else 3, buckets=buckets)


def _width(examples: int, plan: Defaults) -> tuple[int, int]:
    """Choose (width, number of layers) of the model; both grow with the number of examples.

    Word features carry more information about each word than token ids, so they need a smaller model.
    """
    if plan.words:
        ladder = ((10_000, (64, 1)), (100_000, (128, 2)))
    else:
        ladder = ((2_000, (64, 2)), (10_000, (128, 2)), (100_000, (256 if plan.writes else 192, 3)))
    return next((size for most, size in ladder if examples < most), (256, 3))


def _dropout(width: int, writes: bool) -> float:
    """Choose the dropout rate. Small encoders that predict labels overfit sooner than models that generate text
    (``writes``), so they get a higher rate.
    """
    return 0.1 if writes or width >= 192 else 0.3


def _heads(width: int) -> int:
    return max(1, width // _HEAD)


def _encoder_block(width: int, dropout: float, relative: Relative = _INDEPENDENT) -> Block:
    attention = Attention(num_heads=_heads(width), mask=Full(), relative=relative)
    return Block(branches=(attention, FeedForward()), dropout=dropout)


def _frontend(dropout: float) -> Text:
    return Text(positions=Learned(), dropout=dropout)


def _words(dropout: float, characters: int) -> HashedWords:
    """Build the front end for words. It has about as many hash buckets as there are distinct features: one per four
    characters.
    """
    buckets = next((size for size in _BUCKETS if size >= characters // 4), _BUCKETS[-1])
    features = WordFeatures(buckets=buckets, neighbours=2)
    return HashedWords(features=features, positions=NoPositions(), dropout=dropout)


def _reader(width: int, layers: int, sizes: _Sizes, plan: Defaults, task: TaskSpec) -> Model:
    dropout = _dropout(width, writes=False)
    return Model(
        width=width,
        num_layers=layers,
        context_length=_context(sizes.read[1], plan.lengths),
        frontend=_words(dropout, sizes.characters) if plan.words else _frontend(dropout),
        blocks=(_encoder_block(width, dropout, Rope() if plan.words else _INDEPENDENT),),
        head=plan.head or Head.kinds()[task.head](),
    )


def _writer(width: int, layers: int, sizes: _Sizes, plan: Defaults) -> Model:
    heads, dropout = _heads(width), _dropout(width, writes=True)
    branches = (Attention(num_heads=heads), CrossAttention(num_heads=heads), FeedForward())
    frontend = _frontend(dropout)
    encoder = Encoder(
        num_layers=layers,
        context_length=_context(sizes.read[1], plan.lengths),
        frontend=frontend,
        blocks=(_encoder_block(width, dropout),),
        share_embedding=True,
    )
    return Model(
        width=width,
        num_layers=layers,
        context_length=_context(sizes.written[1], plan.lengths),
        frontend=frontend,
        blocks=(Block(branches=branches, dropout=dropout),),
        encoder=encoder,
    )


def _rate(width: int, plan: Defaults) -> float:
    """Choose the learning rate. Word features are sparse and need larger steps than tokens."""
    rate = 1e-3 if plan.writes or width < 128 else 5e-4
    return 3 * rate if plan.words else rate


def _training(
    sizes: _Sizes, width: int, machine: Machine, plan: Defaults, best: str
) -> tuple[Training, LengthBuckets | TokenBuckets]:
    """Return (training settings for the epochs of ``plan`` within the budget, batching of rows with similar
    lengths).
    """
    writes = bool(plan.writes)
    tokens = max(1.0, sizes.read[0] + sizes.written[0]) + 2
    batch = 32 if sizes.examples >= 1000 else 16
    if plan.target:  # long texts are read completely, in windows
        batch = max(4, min(batch, round(_POSITIONS / tokens)))
    positions = max(256, round(batch * tokens * 2 / 256) * 256) if writes else 0
    batch = max(1, round(positions / tokens)) if writes else batch
    epoch = max(1, sizes.examples // batch)
    steps = max(_FEWEST, plan.epochs * epoch)
    every = max(10, min(steps // 10, epoch // 2))
    training = Training(
        steps=steps,
        minutes=MINUTES,
        batch_size=min(batch, 64),
        optimizer=AdamW(lr=_rate(width, plan), beta2=0.98),
        precision=machine.precision,
        schedule=Cosine(warmup=min(100, steps // 10), final=0.05),
        validation=Validation(every=every, batches=100, best=best, patience=_PATIENCE),
        checkpoints=Checkpoints(every=every),
    )
    return training, TokenBuckets(tokens=positions) if writes else LengthBuckets(buckets=4)
