"""Trained models that a processor uses, read from their run folders."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from qkv.data.vocabulary import SPEC_FILE as SPEC
from qkv.data.vocabulary import WEIGHTS_FILE as WEIGHTS
from qkv.data.vocabulary import Vocabulary
from qkv.models.edit.assign import place, places_of
from qkv.models.transformer import Transformer
from qkv.spec.files.shipped import shipped
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError


class Pretrained(NamedTuple):
    """Trained model in evaluation mode, with its recipe, vocabulary, and the SHA-256 of its weights."""

    model: Transformer
    recipe: Recipe
    vocabulary: Vocabulary
    digest: str


def read_pretrained(folder: str, key: str) -> Pretrained:
    """Read the run in ``folder``, which the setting ``key`` names. Raises ``UserError`` if it is missing or damaged."""
    home = Path(folder).expanduser()
    weights = home / WEIGHTS
    if not (home / SPEC).is_file() or not weights.is_file():
        raise UserError(f"{key}: {folder} holds no trained run; train it first: {_command(folder)}")
    try:
        content = weights.read_bytes()
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{key}: {weights} cannot be read: {error}") from None
    recipe = read_recipe(home)
    with torch.device("meta"):
        model = Transformer(recipe.model)
    _place(model, tensors, f"{key}: the weights in {weights} do not fit the model in {home / SPEC}")
    return Pretrained(model.eval(), recipe, Vocabulary.load(home), hashlib.sha256(content).hexdigest())


def _place(model: Transformer, tensors: Mapping[str, Tensor], wrong: str) -> None:
    """Assign tensors to a model on the meta device. Raises ``UserError`` with a message that begins with ``wrong``."""
    state, placed = model.state_dict(keep_vars=True), set[int]()
    for name, places in places_of(model).items():
        if name in tensors and tensors[name].shape == state[name].shape:
            place(places, tensors[name].to(state[name].dtype))
            placed.add(id(state[name]))
    missing = next((name for name, tensor in state.items() if id(tensor) not in placed), None)
    if missing is not None:
        raise UserError(f"{wrong}: the tensor {missing!r} is missing or has another shape")


def _command(folder: str) -> str:
    name = Path(folder).name
    return f"qkv train {name if name in shipped() else 'RECIPE'} --out {folder}"
