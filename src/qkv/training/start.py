"""Training that begins with the weights of another run or of a published checkpoint: pretraining on one text, then a task of its own
(Howard & Ruder 2018; Devlin et al. 2019).

What the recipe leaves out of its model, or gives as the default is, is that of the start, with the head that the task asks for. The stack
takes every tensor of the start's; the two must be built alike. Of a table of vectors the rows that both have are taken, so a vocabulary
may have grown by special tokens and a table of positions may be longer or shorter; new rows begin as the initialisation draws them. A head
of another kind begins at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.vocabulary import TARGET_FILE
from qkv.interop.config import Config
from qkv.interop.folder import read_json
from qkv.interop.load import described, find_folder, load_published
from qkv.interop.places import CONFIG, is_published, may_be_name
from qkv.interop.task_heads import head_tensors, task_heads
from qkv.interop.writing import beginning
from qkv.layers.lora import folded
from qkv.models.transformer import Transformer
from qkv.spec.adapt import LoRA
from qkv.spec.data import Data
from qkv.spec.errors import UserError, nearest
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Task, Translation
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.spec.tokenizers import TokenizerFile
from qkv.spec.yaml_io import read_recipe
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer
from qkv.training.checkpoint import weights
from qkv.training.files import read_tensors
from qkv.training.identity import MADE_WITH, check_unedited
from qkv.training.published import pieces

_SPEC, _WEIGHTS = "spec.yaml", "model.safetensors"
_TABLES = ("frontend.", "encoder.frontend.")
_HEAD = "head."
_VOCABULARY = ("head.weight", "head.bias")
"""Of a language model's head: a row for each id."""
_MARKS = ("begin", "framed")
"""Of a task that writes a text from a text."""


class Start(NamedTuple):
    """What a recipe takes over. ``model`` is None where the folder holds weights and no description of them."""

    model: Model | None
    tokenizer: TokenizerSpec
    target_tokenizer: TokenizerSpec | None
    heads: Mapping[str, Head] = MappingProxyType({})
    """By kind, those that a published family has."""
    task: Task | None = None


def with_start(recipe: Recipe, known: Recipe | None = None) -> Recipe:
    """``recipe`` with tokenizer and model of what it starts from; of a run that is ``known`` already, with what it was begun with.

    Raises ``UserError`` where there is nothing to start from, another tokenizer is asked for, or the model does not fit the task.
    """
    if recipe.start is None:
        return recipe
    if known and known.start == recipe.start:
        start = Start(known.model, known.data.tokenizer, known.data.target_tokenizer, task=known.task)
    else:
        start = find_start(recipe.start)
    recipe = _with_tokenizers(recipe, start.tokenizer, start.target_tokenizer)
    recipe = recipe.changed(task=_written_alike(recipe.task, start.task)) if start.task else recipe
    return recipe if start.model is None else recipe.changed(model=_described(recipe, start.model, start.heads))


def find_start(source: str) -> Start:
    """What stands in a run folder, in a folder of the Hugging Face form, or under a published name. Raises ``UserError``."""
    folder = Path(source).expanduser()
    if _is_run(folder):
        target = TokenizerFile(path=str(folder / TARGET_FILE)) if (folder / TARGET_FILE).exists() else None
        recipe = read_recipe(folder) if (folder / _SPEC).is_file() else None
        return Start(recipe and recipe.model, TokenizerFile(path=str(folder / FILE_NAME)), target, task=recipe and recipe.task)
    if is_published(folder) or (not folder.exists() and may_be_name(source)):
        folder = find_folder(source)
        model = described(folder)[0].spec
        return Start(model, TokenizerFile(path=str(folder)), None, task_heads(folder), _published_task(folder) if model.encoder else None)
    raise UserError(f"start: {source!r} holds no {_WEIGHTS}, so it is no trained run, and no {CONFIG} of a published checkpoint")


def _published_task(folder: Path) -> Task:
    """What an encoder–decoder's makers say of the marks round texts."""
    begin = beginning(folder, Config(read_json(folder / CONFIG), str(folder / CONFIG)))
    return Translation(begin=pieces(folder, Tokenizer.load(folder), begin), framed=True)


def _is_run(folder: Path) -> bool:
    return (folder / _WEIGHTS).is_file() and ((folder / _SPEC).is_file() or not is_published(folder))


def _with_tokenizers(recipe: Recipe, tokenizer: TokenizerSpec, target: TokenizerSpec | None) -> Recipe:
    given = recipe.data.tokenizer
    if given not in (tokenizer, Data.model_fields["tokenizer"].default):
        raise UserError(
            f"data.tokenizer: {given.kind!r} would give other ids than those of the vectors in {recipe.start!r}; "
            "leave the key out, and its tokenizer is taken"
        )
    return recipe.changed(data=recipe.data.changed(tokenizer=tokenizer, target_tokenizer=target))


def _written_alike(task: Task, start: Task) -> Task:
    """``task`` with the marks round texts that the start has learned, where the recipe says nothing of them."""
    both = [name for name in _MARKS if name in type(task).model_fields and name in type(start).model_fields]
    return task.changed(**{name: getattr(start, name) for name in both if getattr(task, name) == type(task).model_fields[name].default})


def _described(recipe: Recipe, start: Model, heads: Mapping[str, Head]) -> Model:
    """The start's model with whatever the recipe says otherwise than the defaults do."""
    default = Model()
    fields = [name for name in Model.model_fields if name != "head"]
    given = {name: getattr(recipe.model, name) for name in fields if getattr(recipe.model, name) != getattr(default, name)}
    inherited: dict[str, Any] = {"frontend": _open(start.frontend)}
    if start.encoder:
        inherited["encoder"] = start.encoder.changed(frontend=_open(start.encoder.frontend))
    return start.changed(**{**inherited, **given, "head": _head(recipe, start, heads)})


def _open(frontend: Any) -> Any:
    """A front end whose size its tokenizer decides, which may get further special tokens."""
    return frontend.unsized()


def _head(recipe: Recipe, start: Model, heads: Mapping[str, Head]) -> Head:
    """The recipe's own head; where there is none, that of the start if it is of the task's kind, that of its family, or a new one."""
    own, kind = recipe.model.head, recipe.task.head
    if own != LanguageModelHead():
        return own
    known = start.head if start.head.kind == kind else heads.get(kind)
    if known is not None:
        return known.changed(num_classes=None) if "num_classes" in type(known).model_fields else known
    part = Head.kinds()[kind]
    # The last position of a model that decodes is the only one that has seen all.
    return part.parse({"pooling": "last" if start.causal else "mean"} if "pooling" in part.model_fields else {})


def start_weights(model: Transformer, recipe: Recipe) -> list[str]:
    """Fill ``model`` with the weights of what ``recipe`` starts from, and say so. Raises ``UserError`` where they do not fit."""
    if recipe.start is None:
        return []
    tensors = _tensors(recipe.start)
    own = weights(model)
    stack = {name for name in own if not name.startswith(_HEAD)}
    _check_names(stack, {name for name in tensors if not name.startswith(_HEAD)}, recipe.start)
    head = {name for name in own if name.startswith(_HEAD)}
    fits = all(name in tensors and _fits(name, own[name], tensors[name], model) for name in head)
    for name in sorted(stack | head if fits else stack):
        _take(own[name], tensors[name], name, recipe.start, name in head)
    some = set() if fits else _part_of_head(own, recipe.start, model)
    rest = "" if fits else f"; its head begins at random{', but for ' * bool(some)}{', '.join(sorted(some))}"
    return [f"the model starts with the weights of {recipe.start!r}{rest}", *_new_rows(own, tensors)]


@torch.no_grad()
def _part_of_head(own: dict[str, Tensor], source: str, model: Transformer) -> set[str]:
    """Take what the files of a published checkpoint hold of the head although they were saved with another, such as a pooler; its names."""
    if _is_run(Path(source).expanduser()):
        return set()
    found = head_tensors(find_folder(source), model.spec)
    for name, tensor in found.items():
        if name in own:
            own[name].copy_(tensor)
    return found.keys() & own.keys()


def _tensors(source: str) -> dict[str, Tensor]:
    """The weights of a start by qkv's names; those of a run with adapters are merged."""
    folder = Path(source).expanduser()
    if not _is_run(folder):
        return weights(load_published(source, dtype="fp32").model)
    tensors, metadata = read_tensors(folder / _WEIGHTS)
    recipe = read_recipe(folder) if (folder / _SPEC).is_file() else None
    check_unedited(metadata.get(MADE_WITH), recipe, folder)
    part = recipe and recipe.training.adapt
    return folded(tensors, part.scale) if isinstance(part, LoRA) else tensors


def _fits(name: str, own: Tensor, given: Tensor, model: Transformer) -> bool:
    """True if a tensor of the head can be taken, of a language model's the rows of the ids that both have."""
    if model.spec.head.kind == "language_model" and name in _VOCABULARY:
        return own.shape[1:] == given.shape[1:]
    return own.shape == given.shape


def _new_rows(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """A sentence for each table of token vectors that has grown."""
    tables = [f"{path}table" for path in _TABLES if f"{path}table" in own and f"{path}table" in tensors]
    grown = {name: own[name].shape[0] - tensors[name].shape[0] for name in tables}
    return [f"{rows:,} rows of {name} belong to tokens that were added, and begin at random" for name, rows in grown.items() if rows > 0]


def _check_names(own: set[str], there: set[str], source: str) -> None:
    missing, left = sorted(own - there), sorted(there - own)
    if missing:
        raise UserError(f"start: the model has {missing[0]!r}, and the run {source!r} does not; {nearest(missing[0], left or there)}")
    if left:
        raise UserError(f"start: the run {source!r} has {left[0]!r}, and the model has no place for it; describe the model as that run's")


@torch.no_grad()
def _take(own: Tensor, given: Tensor, name: str, source: str, by_row: bool) -> None:
    """``by_row``: take the rows that both have, as of a table of the front end."""
    if own.shape == given.shape:
        own.copy_(given)
    elif (by_row or name.startswith(_TABLES)) and own.dim() and own.shape[1:] == given.shape[1:]:
        rows = min(own.shape[0], given.shape[0])
        own[:rows] = given[:rows].to(own)
    else:
        raise UserError(
            f"start: {name!r} has the shape {tuple(own.shape)} here and {tuple(given.shape)} in the run {source!r}; give both the same sizes"
        )
