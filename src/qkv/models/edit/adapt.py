"""Trainable parameters of a model and their learning-rate factors, selected by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from qkv.layers.branch import linear_maps
from qkv.layers.linear.lora import LowRank, wrap
from qkv.models.edit.quantize import quantize
from qkv.models.transformer import Transformer
from qkv.spec.models import adapt as spec
from qkv.spec.models.quantization import Quantization
from qkv.spec.register import implementation, implements
from qkv.spec.training import Training
from qkv.system.errors import UserError, nearest

_HEAD = "head."


class Adapting:
    """Base class of selections of trainable parameters; this class selects all. Constructor: ``cls(part)``."""

    def __init__(self, part: Any):
        self.part = part

    def add(self, model: nn.Module) -> None:
        """Add the adapters of this selection, if any, to ``model`` in place; torch's default generator draws the
        weights.
        """

    def learning(self, model: Transformer, names: list[str]) -> set[str]:
        """Return the subset of ``names`` to train. Raises ``UserError`` if the model has no such parameters."""
        return set(names)


implements(spec.Whole)(Adapting)


@implements(spec.HeadOnly)
class HeadOnly(Adapting):
    """Selection of the head's parameters."""

    def learning(self, model: Transformer, names: list[str]) -> set[str]:
        head_names = _of_head(names)
        if not head_names:
            raise UserError(
                f"training.adapt: {self.part.kind!r} trains nothing, because the head's matrix is the token embedding "
                "table; set model.head.tied=false, or choose another training.adapt"
            )
        return head_names


@implements(spec.Last)
class Last(Adapting):
    """Selection of the head, the final norm and the last blocks."""

    part: spec.Last

    def learning(self, model: Transformer, names: list[str]) -> set[str]:
        count, layers = len(model.blocks), self.part.num_layers
        if layers > count:
            raise UserError(f"training.adapt: last({layers}) selects more layers than the {count} of the model")
        ends = (_HEAD, "norm.", *(f"blocks.{i}." for i in range(count - layers, count)))
        return {name for name in names if name.startswith(ends)}


@implements(spec.LoRA)
class LoRA(Adapting):
    """Selection of low-rank matrices beside linear layers, and of the whole head if it does not predict tokens."""

    part: spec.LoRA

    def add(self, model: nn.Module) -> None:
        wrap(model, _targets(model, self.part), self.part)

    def learning(self, model: Transformer, names: list[str]) -> set[str]:
        beside = set[str]() if model.spec.head.predicts_tokens else _of_head(names)
        return _own_matrices(model) | beside | matching(self.part.whole, names, "training.adapt.whole")


def _way(part: spec.Adapt) -> Adapting:
    return implementation(part, "qkv.models")(part)


def adapt(model: Transformer, training: Training) -> None:
    """Add the adapters of ``training.adapt`` and freeze all parameters but the trainable ones, in place.

    The adapters are initialised from ``training.seed`` alone. Raises ``UserError`` if a target or a pattern matches
    nothing, or no parameter would be trainable.
    """
    add_adapters(model, training)
    names = [name for name, _ in model.named_parameters()]
    learning = _learning(model, training, names)
    if not learning:
        raise UserError("training.adapt and training.frozen leave no trainable parameter; freeze fewer")
    for name, parameter in model.named_parameters():
        if name not in learning:
            parameter.requires_grad_(False)


def narrow_frozen(model: Transformer, training: Training, part: Quantization | None) -> None:
    """Quantise the weights of ``model`` as ``part`` says, in place, except those that are trained beside adapters. Does
    nothing without ``part``.
    """
    if part is not None:
        names = [name for name, _ in model.named_parameters()]
        apart = _learning(model, training, names) if training.adapt.adds_matrices else set[str]()
        quantize(model, part, apart)


def _learning(model: Transformer, training: Training, names: list[str]) -> set[str]:
    return _way(training.adapt).learning(model, names) - matching(training.frozen, names, "training.frozen")


def add_adapters(model: nn.Module, training: Training) -> None:
    """Add the adapters of ``training.adapt`` to ``model``, which must not have any. Raises ``UserError`` if no linear
    layer matches a target.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        _way(training.adapt).add(model)


def _targets(model: nn.Module, part: spec.LoRA) -> list[str]:
    """Return the paths of linear maps in blocks that end in one of the targets, in the model's order."""
    maps = linear_maps(model)
    if spec.ALL in part.targets:
        return list(maps)
    for target in part.targets:
        if not any(_ends(path, target) for path in maps):
            raise UserError(
                f"training.adapt.targets: no linear map of a block has a path that ends in {target!r}; "
                f"{_near(target, maps)}"
            )
    return [path for path in maps if any(_ends(path, target) for target in part.targets)]


def _ends(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _near(target: str, maps: Iterable[str]) -> str:
    """Suggest the path in ``maps`` closest to ``target``, for an error message."""
    count = target.count(".") + 1
    return nearest(target, {".".join(path.split(".")[-count:]) for path in maps})


def _of_head(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(_HEAD)}


def _own_matrices(model: nn.Module) -> set[str]:
    return {
        f"{path}.{leaf}"
        for path, module in model.named_modules()
        if isinstance(module, LowRank)
        for leaf in ("lora_a", "lora_b")
    }


def matching(patterns: Iterable[str], names: Iterable[str], key: str) -> set[str]:
    """Return the names that match a pattern: ``*`` matches any text; the path of a module matches all names below it.

    key: setting that contains the patterns. Raises ``UserError`` with the nearest path if a pattern matches nothing.
    """
    names, result = list(names), set[str]()
    for pattern in patterns:
        met = {name for name in names if meets(pattern, name)}
        if not met:
            raise UserError(f"{key}: no parameter has a path like {pattern!r}; {_nearest_path(pattern, names)}")
        result |= met
    return result


def meets(pattern: str, name: str) -> bool:
    """Return True if ``pattern`` matches ``name``: ``*`` is any text, a module's path matches all names below it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _nearest_path(pattern: str, names: Iterable[str]) -> str:
    paths = {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)}
    hint = nearest(pattern, paths)
    return hint if hint.startswith("did you mean") else nearest("", {path.split(".")[0] for path in paths})


def rate_factors(rates: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return the learning-rate factor of each parameter: ``rates`` of the first pattern that matches its name, else 1.

    Raises ``UserError`` if a pattern matches no name.
    """
    names = list(names)
    matching(rates, names, "training.rates")
    return {name: next((factor for pattern, factor in rates.items() if meets(pattern, name)), 1.0) for name in names}


def learned_sentence(model: Transformer, training: Training) -> str:
    """Return a message with the number of trainable parameters; "" if all are trainable."""
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    if learning == total:
        return ""
    return (
        f"{learning:,} of {total:,} parameters are trainable, {learning / total:.1%} "
        f"(training.adapt: {training.adapt.kind})"
    )
