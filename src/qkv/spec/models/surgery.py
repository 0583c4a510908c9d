"""Model surgery: replace parts by overrides per layer; a new branch keeps the settings that both kinds share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from qkv.spec.base import read_short_form
from qkv.spec.branches import Branch
from qkv.spec.files.overrides import Assignment, apply, assignments
from qkv.spec.files.plain import is_slot, plain, shape_of
from qkv.spec.model import Block, Layered, Model, Stack
from qkv.spec.recipe import Recipe

L = TypeVar("L", bound=Layered)
S = TypeVar("S", bound=Stack)


def operated(recipe: Recipe, changes: Iterable[str | Assignment]) -> Recipe:
    """Return a copy of the recipe with parts of its model replaced by dotted overrides.

    The prefix ``model.`` is optional. ``blocks.3`` is layer 3 of the unrolled stack. A branch that replaces another
    inherits fields of the same name and type unless the override sets them: ``blocks.*.mixer=linear_attention`` keeps
    the number of heads. Raises ``SpecError``.
    """
    chosen = [a if a.path[0] in Recipe.model_fields else a.under("model") for a in assignments(changes)]
    model = unrolled(recipe.model)
    data, _ = apply(plain(recipe.changed(model=model), in_slot=False), chosen, Recipe)
    _inherit(model, data["model"])
    for name in ("encoder", "latents"):
        if before := getattr(model, name):
            _inherit(before, data["model"].get(name))
    if (within := model.segmentation) and within.inner:
        _inherit(within.inner, cast("dict[str, Any]", data["model"].get("segmentation") or {}).get(within.inner_name))
    result = Recipe.parse(data, "the changed recipe")
    return result.changed(model=folded(result.model))


def unrolled(model: Model) -> Model:
    """Return a copy of ``model`` that lists every layer instead of a repeated pattern, in all of its stacks."""
    encoder, inner = model.encoder and _unrolled(model.encoder), model.segmentation
    beside = {"latents": model.latents and _listed(model.latents), "segmentation": inner and inner.with_inner(_listed)}
    return _unrolled(model).changed(encoder=encoder, **beside)


def folded(model: Model) -> Model:
    """Inverse of ``unrolled``: return ``model`` with the shortest repeated pattern of blocks that gives its layers."""
    encoder, latents = (before and _folded(before) for before in (model.encoder, model.latents))
    segmentation = model.segmentation and model.segmentation.with_inner(_folded)
    return _folded(model).changed(encoder=encoder, latents=latents, segmentation=segmentation)


def _unrolled(stack: S) -> S:
    return _listed(stack).changed(frontend=stack.frontend.without_initial_vectors())


def _listed(stack: L) -> L:
    return stack.changed(blocks=stack.layers, num_layers=None)


def _folded(stack: L) -> L:
    layers = stack.layers
    pattern = shortest_pattern(layers)
    return stack.changed(blocks=pattern, num_layers=len(layers) if len(pattern) < len(layers) else None)


def shortest_pattern(layers: Sequence[Block]) -> tuple[Block, ...]:
    """Return the shortest prefix of ``layers`` that gives all of them when it is repeated."""
    periods = range(1, len(layers))
    fitting = (p for p in periods if all(layer == layers[i % p] for i, layer in enumerate(layers)))
    return tuple(layers[: next(fitting, len(layers))])


def _inherit(old: Layered, data: Any) -> None:
    """Fill missing fields of branches in a stack's plain ``data`` from the branches of ``old`` that they replace."""
    blocks = cast("dict[str, Any]", data).get("blocks") if isinstance(data, dict) else None
    if not isinstance(blocks, list) or len(cast("list[Any]", blocks)) != len(old.blocks):
        return
    for was, block in zip(old.blocks, cast("list[Any]", blocks), strict=True):
        branches = cast("dict[str, Any]", block).get("branches") if isinstance(block, dict) else None
        if isinstance(branches, list) and len(cast("list[Any]", branches)) == len(was.branches):
            block["branches"] = [_filled(was, i, value) for i, value in enumerate(cast("list[Any]", branches))]


def _filled(block: Block, i: int, value: Any) -> Any:
    """Return ``value``, the plain data of branch ``i``, with missing fields from the branch that it replaces."""
    old = block.branches[i]
    fields: Any = value
    if isinstance(value, str):
        try:
            fields = read_short_form(Branch, value)
        except ValueError:
            return value  # parsing the whole spec refuses it later, with its path
    if not isinstance(fields, dict):
        return value
    settings = cast("dict[str, Any]", fields)
    kind = Branch.of_kind(settings.get("kind"))
    if kind is None:
        return value
    common = {
        name: field for name, field in type(old).model_fields.items() if _same_field(kind, name, field.annotation)
    }
    old_fields = {
        name: plain(getattr(old, name), is_slot(shape_of(field.annotation).spec)) for name, field in common.items()
    }
    return {**old_fields, **settings}


def _same_field(kind: type[Branch], name: str, annotation: Any) -> bool:
    return name in kind.model_fields and kind.model_fields[name].annotation == annotation
