"""Trainable parameters of a model and their learning-rate factors, selected by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from qkv.layers.branch import linear_maps
from qkv.layers.lora import LowRank, wrap
from qkv.models.transformer import Transformer
from qkv.spec.adapt import Adapt, HeadOnly, Last, LoRA
from qkv.spec.errors import UserError, nearest
from qkv.spec.training import Training

_HEAD = "head."


def adapt(model: Transformer, training: Training) -> None:
    """Add the adapters of ``training.adapt``, initialised from ``training.seed`` alone, and freeze all but the
    trainable parameters.

    Raises ``UserError`` if a target or a pattern matches nothing, or no parameter would be trainable.
    """
    add_adapters(model, training)
    names = [name for name, _ in model.named_parameters()]
    learning = _learning(training.adapt, model, names) - matching(training.frozen, names, "training.frozen")
    if not learning:
        raise UserError("training.adapt and training.frozen leave no trainable parameter; freeze fewer")
    for name, parameter in model.named_parameters():
        if name not in learning:
            parameter.requires_grad_(False)


def add_adapters(model: nn.Module, training: Training) -> None:
    """Add the adapters of ``training.adapt`` to ``model``, which has none yet. Raises ``UserError`` for an unknown
    target.
    """
    part = training.adapt
    if not isinstance(part, LoRA):
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        wrap(model, _targets(model, part), part)


def _targets(model: nn.Module, part: LoRA) -> list[str]:
    """Paths of linear maps in blocks that end in one of the targets, in the model's order."""
    maps = linear_maps(model)
    for target in part.targets:
        if not any(_ends(path, target) for path in maps):
            raise UserError(f"training.adapt.targets: no linear map of a block has a path that ends in {target!r}; {_near(target, maps)}")
    return [path for path in maps if any(_ends(path, target) for target in part.targets)]


def _ends(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _near(target: str, maps: Iterable[str]) -> str:
    """Suggestion: the closest path ending with as many names."""
    count = target.count(".") + 1
    return nearest(target, {".".join(path.split(".")[-count:]) for path in maps})


def _learning(part: Adapt, model: Transformer, names: list[str]) -> set[str]:
    match part:
        case HeadOnly():
            return _of_head(names, "head")
        case Last():
            return _last(part, model, names)
        case LoRA():
            beside = {name for name in names if name.startswith(_HEAD)} if model.spec.head.kind != "language_model" else set[str]()
            return _own_matrices(model) | beside | matching(part.whole, names, "training.adapt.whole")
        case _:
            return set(names)


def _of_head(names: Iterable[str], kind: str) -> set[str]:
    found = {name for name in names if name.startswith(_HEAD)}
    if not found:
        raise UserError(
            f"training.adapt: {kind!r} trains nothing, because the head's matrix is the token embedding table; "
            "give model.head.tied=false, or another way to adapt"
        )
    return found


def _last(part: Last, model: Transformer, names: Iterable[str]) -> set[str]:
    count = len(model.blocks)
    if part.num_layers > count:
        raise UserError(f"training.adapt: last({part.num_layers}) asks for more layers than the {count} that the model has")
    ends = (_HEAD, "norm.", *(f"blocks.{i}." for i in range(count - part.num_layers, count)))
    return {name for name in names if name.startswith(ends)}


def _own_matrices(model: nn.Module) -> set[str]:
    return {f"{path}.{leaf}" for path, module in model.named_modules() if isinstance(module, LowRank) for leaf in ("lora_a", "lora_b")}


def matching(patterns: Iterable[str], names: Iterable[str], key: str) -> set[str]:
    """Names matched by a pattern: ``*`` is any text, and the path of a module includes everything below it.

    Raises ``UserError`` with the nearest path for a pattern without matches; ``key``: setting that contains the
    patterns.
    """
    names, found = list(names), set[str]()
    for pattern in patterns:
        met = {name for name in names if meets(pattern, name)}
        if not met:
            raise UserError(f"{key}: no parameter has a path like {pattern!r}; {_nearest_path(pattern, names)}")
        found |= met
    return found


def meets(pattern: str, name: str) -> bool:
    """True if ``pattern`` matches the path ``name``."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _nearest_path(pattern: str, names: Iterable[str]) -> str:
    paths = {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)}
    found = nearest(pattern, paths)
    return found if found.startswith("did you mean") else nearest("", {path.split(".")[0] for path in paths})


def rate_factors(rates: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Learning-rate factor of each name by the first matching pattern, default 1. Raises ``UserError`` for a pattern
    without matches.
    """
    names = list(names)
    matching(rates, names, "training.rates")
    return {name: next((factor for pattern, factor in rates.items() if meets(pattern, name)), 1.0) for name in names}


def learned_sentence(model: nn.Module, training: Training) -> str:
    """Message with the number of trainable parameters; empty if all are trainable."""
    every: list[Any] = list(model.parameters())
    learning = sum(p.numel() for p in every if p.requires_grad)
    total = sum(p.numel() for p in every)
    if learning == total:
        return ""
    return f"{learning:,} of {total:,} parameters are trainable, {learning / total:.1%} (training.adapt: {training.adapt.kind})"
