"""Training that begins with the weights of another run: pretraining on one text, then a task of its own (Howard & Ruder 2018; Devlin et al. 2019).

The stack takes every tensor of the run's; the two must be built alike. Of a table of vectors the rows that both have are taken, so a vocabulary
may have grown by special tokens and a table of positions may be longer or shorter. A head of another kind begins at random.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from qkv.data.vocabulary import TARGET_FILE
from qkv.models.transformer import Transformer
from qkv.spec.data import Data
from qkv.spec.errors import UserError, nearest
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.spec.tokenizers import TokenizerFile
from qkv.tokenizers.tokenizer import FILE_NAME
from qkv.training.checkpoint import weights
from qkv.training.files import read_tensors

_WEIGHTS = "model.safetensors"
_TABLES = ("frontend.", "encoder.frontend.")
_HEAD = "head."


def with_start(recipe: Recipe, known: Recipe | None = None) -> Recipe:
    """``recipe`` with the tokenizer of the run that it starts from; of a run that is ``known`` already, with what it was begun with.

    Raises ``UserError`` where there is no such run, or another tokenizer is asked for.
    """
    if recipe.start is None:
        return recipe
    if known and known.start == recipe.start:
        return _with_tokenizers(recipe, known.data.tokenizer, known.data.target_tokenizer)
    folder = Path(recipe.start).expanduser()
    if not (folder / _WEIGHTS).is_file():
        raise UserError(f"start: {recipe.start!r} holds no {_WEIGHTS}, so it is no trained run")
    target = TokenizerFile(path=str(folder / TARGET_FILE)) if (folder / TARGET_FILE).exists() else None
    return _with_tokenizers(recipe, TokenizerFile(path=str(folder / FILE_NAME)), target)


def _with_tokenizers(recipe: Recipe, tokenizer: TokenizerSpec, target: TokenizerSpec | None) -> Recipe:
    given = recipe.data.tokenizer
    if given not in (tokenizer, Data.model_fields["tokenizer"].default):
        raise UserError(
            f"data.tokenizer: {given.kind!r} would give other ids than those of the vectors in {recipe.start!r}; "
            "leave the key out, and its tokenizer is taken"
        )
    return recipe.changed(data=recipe.data.changed(tokenizer=tokenizer, target_tokenizer=target))


def start_weights(model: Transformer, recipe: Recipe) -> list[str]:
    """Fill ``model`` with the weights of the run that ``recipe`` names, and say so. Raises ``UserError`` where they do not fit."""
    if recipe.start is None:
        return []
    tensors, _ = read_tensors(Path(recipe.start).expanduser() / _WEIGHTS)
    own = weights(model)
    stack = {name for name in own if not name.startswith(_HEAD)}
    _check_names(stack, {name for name in tensors if not name.startswith(_HEAD)}, recipe.start)
    head = {name for name in own if name.startswith(_HEAD)}
    fits = all(name in tensors and tensors[name].shape == own[name].shape for name in head)
    for name in sorted(stack | head if fits else stack):
        _take(own[name], tensors[name], name, recipe.start)
    rest = "" if fits else "; its head begins at random"
    return [f"the model starts with the weights of {recipe.start!r}{rest}"]


def _check_names(own: set[str], there: set[str], source: str) -> None:
    missing, left = sorted(own - there), sorted(there - own)
    if missing:
        raise UserError(f"start: the model has {missing[0]!r}, and the run {source!r} does not; {nearest(missing[0], left or there)}")
    if left:
        raise UserError(f"start: the run {source!r} has {left[0]!r}, and the model has no place for it; describe the model as that run's")


@torch.no_grad()
def _take(own: Tensor, given: Tensor, name: str, source: str) -> None:
    if own.shape == given.shape:
        own.copy_(given)
    elif name.startswith(_TABLES) and own.dim() and own.shape[1:] == given.shape[1:]:
        rows = min(own.shape[0], given.shape[0])
        own[:rows] = given[:rows].to(own)
    else:
        raise UserError(
            f"start: {name!r} has the shape {tuple(own.shape)} here and {tuple(given.shape)} in the run {source!r}; give both the same sizes"
        )
