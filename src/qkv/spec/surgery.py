"""Other parts put into a model that is there: overrides by layer, in which what a new part does not say stays as the old one had it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from qkv.spec.base import read_short_form
from qkv.spec.branches import Branch
from qkv.spec.model import Block, Layered, Model, Stack, Text
from qkv.spec.overrides import Assignment, apply, assignments
from qkv.spec.plain import is_slot, plain, shape_of
from qkv.spec.recipe import Recipe

L = TypeVar("L", bound=Layered)
S = TypeVar("S", bound=Stack)


def operated(recipe: Recipe, changes: Iterable[str | Assignment]) -> Recipe:
    """``recipe`` with parts of its model replaced by dotted overrides; ``model.`` before a path may be left out.

    ``blocks.3`` is layer 3, however the layers are listed. A branch that takes the place of another has its fields wherever both kinds have
    the same one and the override does not say it: ``blocks.*.mixer=linear_attention`` keeps the number of heads. Raises ``SpecError``.
    """
    chosen = [a if a.path[0] in Recipe.model_fields else a.under("model") for a in assignments(changes)]
    model = unrolled(recipe.model)
    data, _ = apply(plain(recipe.changed(model=model), in_slot=False), chosen, Recipe)
    _inherit(model, data["model"])
    for name in ("encoder", "latents"):
        if before := getattr(model, name):
            _inherit(before, data["model"].get(name))
    found = Recipe.parse(data, "the changed recipe")
    return found.changed(model=folded(found.model))


def unrolled(model: Model) -> Model:
    """``model`` with every layer listed, of its encoder too."""
    encoder = model.encoder and _unrolled(model.encoder)
    return _unrolled(model).changed(encoder=encoder, latents=model.latents and _listed(model.latents))


def folded(model: Model) -> Model:
    """``model`` with the shortest pattern of blocks that gives its layers."""
    encoder, latents = (before and _folded(before) for before in (model.encoder, model.latents))
    return _folded(model).changed(encoder=encoder, latents=latents)


def _unrolled(stack: S) -> S:
    return _listed(stack).changed(frontend=_without_vectors(stack))


def _listed(stack: L) -> L:
    return stack.changed(blocks=stack.layers, num_layers=None)


def _folded(stack: L) -> L:
    layers = stack.layers
    period = next((p for p in range(1, len(layers)) if all(layers[i] == layers[i % p] for i in range(len(layers)))), len(layers))
    return stack.changed(blocks=layers[:period], num_layers=len(layers) if period < len(layers) else None)


def _without_vectors(stack: Stack) -> Any:
    """The front end; vectors that its training began with were taken then."""
    return stack.frontend.changed(vectors=None) if isinstance(stack.frontend, Text) else stack.frontend


def _inherit(old: Layered, data: Any) -> None:
    """Fill the branches of the plain ``data`` of a stack, where they replace those of ``old``, with the fields that they do not say."""
    blocks = cast("dict[str, Any]", data).get("blocks") if isinstance(data, dict) else None
    if not isinstance(blocks, list) or len(cast("list[Any]", blocks)) != len(old.blocks):
        return
    for was, block in zip(old.blocks, cast("list[Any]", blocks), strict=True):
        branches = cast("dict[str, Any]", block).get("branches") if isinstance(block, dict) else None
        if isinstance(branches, list) and len(cast("list[Any]", branches)) == len(was.branches):
            block["branches"] = [_filled(was, i, value) for i, value in enumerate(cast("list[Any]", branches))]


def _filled(block: Block, i: int, value: Any) -> Any:
    """The plain ``value`` of branch ``i`` with what it has in common with the one that was there and does not say."""
    old = block.branches[i]
    fields: Any = value
    if isinstance(value, str):
        try:
            fields = read_short_form(Branch, value)
        except ValueError:
            return value  # refused where the whole is read, with its path
    if not isinstance(fields, dict):
        return value
    said = cast("dict[str, Any]", fields)
    kind = Branch.kinds().get(str(said.get("kind")))
    if kind is None:
        return value
    common = {name: field for name, field in type(old).model_fields.items() if _same_field(kind, name, field.annotation)}
    kept = {name: plain(getattr(old, name), is_slot(shape_of(field.annotation).spec)) for name, field in common.items()}
    return {**kept, **said}


def _same_field(kind: type[Branch], name: str, annotation: Any) -> bool:
    return name in kind.model_fields and kind.model_fields[name].annotation == annotation
