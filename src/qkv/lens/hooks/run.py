"""Runs of a model in the habits of TransformerLens: a cache of all values by name, and functions at named points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Tap
from qkv.lens.hooks.cache import ActivationCache
from qkv.lens.hooks.names import NamedValue, find_view, list_names
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

Names = str | Sequence[str] | Callable[[str], bool] | None
"""Selection of names: one, several, a function of the name, or None for all that the model accepts."""


class HookPoint:
    """Second argument of a hook: the ``name`` of the point, and ``ctx``, where hooks may leave something."""

    def __init__(self, name: str, ctx: dict[str, Any]):
        self.name, self.ctx = name, ctx

    def layer(self) -> int:
        """Return the number of the block. Raises ``UserError`` for a point outside of the blocks."""
        steps = self.name.split(".")
        if steps[0] != "blocks":
            raise UserError(f"{self.name!r} is not in a block")
        return int(steps[1])


Hook = Callable[..., Tensor | None]
"""Function (tensor, hook=point) -> its replacement, or None for no change."""


def run_with_cache(
    model: Transformer, tokens: Signal | Tensor, names_filter: Names = None
) -> tuple[Tensor, ActivationCache]:
    """Run ``model`` on tokens (B, N) without dropout; return (its logits, cache of the selected names).

    names_filter: names of TransformerLens; default: all that the model accepts, see ``list_names``.
    Gradients are computed unless they are off. Raises ``UserError`` for a name that the model does not accept.
    """
    names = _selected(model, names_filter)
    values: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        values[hook.name] = value

    logits = run_with_hooks(model, tokens, [(name, keep) for name in names])
    return logits, ActivationCache({name: values[name] for name in names}, model)


def run_with_hooks(model: Transformer, tokens: Signal | Tensor, fwd_hooks: Sequence[tuple[Names, Hook]] = ()) -> Tensor:
    """Run ``model`` on tokens (B, N) without dropout, with functions at named points; return its logits.

    fwd_hooks: pairs (name of TransformerLens or function of names, hook). A hook is called ``hook(tensor, hook=point)``
        and returns a replacement of the same shape, or None. Hooks of one point run in the order given.

    Raises ``UserError`` for a name that the model does not accept.
    """
    hooks: dict[str, list[Hook]] = {}
    for names, hook in fwd_hooks:
        for name in _selected(model, names):
            hooks.setdefault(name, []).append(hook)
    with evaluating(model), model.tapped(_Hooks(model, hooks)):
        return model(tokens)[0]


def _selected(model: Transformer, names: Names) -> list[str]:
    if isinstance(names, str):
        return [names]
    if names is None or callable(names):
        return [name for name in list_names(model) if names is None or names(name)]
    return list(names)


class _Hooks(Tap):
    """Tap that calls the hooks at the points of their names."""

    def __init__(self, model: Transformer, hooks: Mapping[str, Sequence[Hook]]):
        self.views: dict[str, list[NamedValue]] = {}
        for name in hooks:
            view = find_view(model, name)
            self.views.setdefault(view.point, []).append(view)
        self.hooks = {name: (HookPoint(name, {}), list(several)) for name, several in hooks.items()}
        beside = {view.beside for views in self.views.values() for view in views if view.beside is not None}
        super().__init__(*self.views, *beside)
        self.before: dict[str, Tensor] = {}
        """Latest values at the points that views read beside their own."""
        self.beside = beside

    def at(self, location: Location, value: Tensor) -> Tensor:
        path, first = location.path, value
        for view in self.views.get(path, ()):
            tensor = view.shown(value if view.beside is None else self.before[view.beside])
            point, hooks = self.hooks[view.name]
            new: Tensor | None = None
            for hook in hooks:
                changed = hook(tensor if new is None else new, hook=point)
                new = new if changed is None else changed
            if new is not None:
                if new.shape != tensor.shape:
                    raise UserError(
                        f"the hook at {view.name!r} returns the shape {list(new.shape)}; the value there has "
                        f"{list(tensor.shape)}"
                    )
                value = view.replaced(new, value)
        if path in self.beside:
            self.before[path] = value
        return first if value is first else value
