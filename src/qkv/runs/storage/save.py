"""Save a model that was trained by any training loop as a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.runs.storage.checkpoint import save_weights, weights
from qkv.runs.storage.files import clear_errors
from qkv.runs.storage.folder import SPEC, WEIGHTS, locked
from qkv.runs.storage.identity import MADE_WITH, difference, essence, made_with, write_parts
from qkv.runs.storage.published import NOT_SAID, task_of_head
from qkv.spec.data import Data
from qkv.spec.files.yaml_io import read_recipe, write_spec
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import TokenizerFile
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings
from qkv.tasks.dataset import with_vocabulary
from qkv.tokenizers.absent import NO_TEXT
from qkv.tokenizers.convert import convert_tokenizer
from qkv.tokenizers.tokenizer import Tokenizer

_TRAINED = ("resume", "metrics.jsonl")
"""Files that only exist in a run that ``qkv.train`` trained."""


@with_usual_settings
def save(
    model: Transformer,
    folder: str | Path,
    tokenizer: Any = None,
    labels: Sequence[str] = (),
    task: Any = None,
    description: str = "",
    step: int = 0,
) -> Path:
    """Save a model that was trained by a custom loop as a run; return the folder. The run can be opened by ``load`` and
    the command line, and further training can start from it.

    ``model``: made by ``build`` or ``load``. ``tokenizer``: a tokenizer of qkv or of the libraries tokenizers or
    transformers, the path of a tokenizer, or a run; without a tokenizer, the model takes token ids. ``labels``: names
    of the classes, by default their numbers. ``task``: task such as "masked_tokens", by default the task that fits the
    head. ``step``: number of steps trained. If the folder holds the same model, its weights are replaced atomically;
    other content is refused.

    Raises ``UserError``.
    """
    folder = Path(folder)
    if not isinstance(model, Transformer):
        raise UserError(f"model: {type(model).__name__} given; allowed: a model made by qkv.build or qkv.load")
    _check_buildable(model)
    vocabulary = _vocabulary(model, None if tokenizer is None else convert_tokenizer(tokenizer), labels)
    recipe = _recipe(model, folder, vocabulary, task, description)
    _check_place(folder, recipe, vocabulary)
    with locked(folder), clear_errors(str(folder)):
        vocabulary.save(folder)
        save_weights(folder / WEIGHTS, model, {"step": step, MADE_WITH: made_with(recipe, folder)})
        write_parts(recipe, folder)
        write_spec(folder / SPEC, recipe)
    return folder


def _check_buildable(model: Transformer) -> None:
    """Raise ``UserError`` if building the spec of ``model`` gives other parameters than the model has: it could then
    not be loaded.
    """
    with torch.device("meta"):
        built = {name: tensor.shape for name, tensor in weights(Transformer(model.spec)).items()}
    shapes = {name: tensor.shape for name, tensor in weights(model).items()}
    change = difference(
        {name: list(shape) for name, shape in built.items()}, {name: list(shape) for name, shape in shapes.items()}
    )
    if change:
        raise UserError(
            f"model: its spec does not describe its parameters ({change}; there: built from the spec, here: the "
            "model); "
            "merge its adapters, and put its modules of your own into the spec"
        )


def _vocabulary(model: Transformer, tokenizer: Tokenizer | None, labels: Sequence[str]) -> Vocabulary:
    """Build the vocabulary of the run from tokenizer and labels; classes without labels are numbered."""
    classes = 0 if model.spec.head.writes_text else model.spec.head.classes or 0
    names = tuple(labels) or tuple(str(i) for i in range(classes))
    if len(names) != classes or len(set(names)) != classes:
        raise UserError(f"labels: {len(set(names))} different labels given, but the model has {classes} classes")
    reader = tokenizer or NO_TEXT
    return Vocabulary(reader, reader, names)


def _recipe(model: Transformer, folder: Path, vocabulary: Vocabulary, task: Any, description: str) -> Recipe:
    data = Data(source=NOT_SAID)
    if vocabulary.has_text:
        data = data.changed(tokenizer=TokenizerFile(path=str(folder)))
    plain = {"name": folder.name, "description": description, "data": data, "model": model.spec}
    recipe = Recipe.parse({**plain, "task": task_of_head(model.spec, str(folder)) if task is None else task})
    return with_vocabulary(recipe, vocabulary) if vocabulary.has_text else recipe


def _check_place(folder: Path, recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Raise ``UserError`` if the folder holds anything other than an earlier version of the same model."""
    file = next((name for name in _TRAINED if (folder / name).exists()), None)
    if file is not None:
        raise UserError(f"{folder} holds a run trained by qkv ({file}); name another folder")
    if (folder / SPEC).is_file():
        other = difference(essence(read_recipe(folder)), essence(recipe))
        if not other and Vocabulary.load(folder).digest() != vocabulary.digest():
            other = "its tokenizer or its labels differ"
        if other:
            raise UserError(f"{folder} holds another model: {other}; name another folder")
    elif (folder / WEIGHTS).exists():
        raise UserError(f"{folder} holds a {WEIGHTS} but no {SPEC}: weights of another program; name another folder")
