"""Noise in stored tensors: both libraries must follow it, or qkv must refuse the file.

Tensors that differ only in numbers, such as that of a layer, change together. All noise at once is tried first; where
the file is refused or the answers differ, each half of the tensors, down to one alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.interop.battery import Pair, answered, gradients, our_answer, stored, their_answer
from torch import Tensor

from qkv.interop.load import load_published
from qkv.interop.mapping.names import Reasons, expression
from qkv.system.errors import UserError


def unfollowed(pair: Pair, folder: Path) -> list[str]:
    """Names of tensors whose noise qkv does not follow as the other library does, nor refuses.

    Tensors whose gradients are compared are followed. Tensors that files of other versions hold are noise themselves.
    """
    tensors = stored(pair.folder)
    for path in pair.folder.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    alone, unknown = _without_gradient(pair, tensors), _of_other_versions(pair, tensors)
    generator = torch.Generator().manual_seed(11)
    changes = [{name: _noisy(alone[name], generator) for name in names} for names in _by_kind(alone)]
    changes += [{name: torch.randn(3, generator=generator) for name in unknown}] if unknown else []
    return _named(pair, folder, tensors, changes)


def _named(pair: Pair, folder: Path, tensors: Mapping[str, Tensor], changes: Sequence[dict[str, Tensor]]) -> list[str]:
    """Find those of the changes that are neither followed nor refused."""
    if not changes:
        return []
    followed = _follows(pair, folder, {**tensors, **{name: t for change in changes for name, t in change.items()}})
    if followed or (followed is None and len(changes) == 1):
        return []
    if len(changes) == 1:
        return [", ".join(changes[0])]
    half = len(changes) // 2
    return [*_named(pair, folder, tensors, changes[:half]), *_named(pair, folder, tensors, changes[half:])]


def _by_kind(names: Iterable[str]) -> list[list[str]]:
    """Group names that differ only in numbers."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    return list(groups.values())


def _follows(pair: Pair, folder: Path, tensors: Mapping[str, Tensor]) -> bool | None:
    """Whether both libraries have the same answers with these tensors; None where qkv refuses them."""
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    try:
        published = load_published(folder)
    except UserError:
        return None
    theirs = type(pair.theirs).from_pretrained(folder, attn_implementation=pair.case.attention).eval()
    again = replace(pair, theirs=theirs, published=published)
    with torch.no_grad():
        ours, wanted = answered(again, our_answer(again)), answered(again, their_answer(again))
    return float((ours - wanted).abs().max() / wanted.abs().max()) < 1e-4


def _noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Add noise above 0, as of a variance; whole numbers are turned round."""
    if not tensor.is_floating_point():
        return tensor.flatten().flip(0).view(tensor.shape)
    return tensor + 0.1 + torch.rand(tensor.shape, generator=generator)


def _without_gradient(pair: Pair, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in the file, and of the class if the file may hold them, whose gradients cannot be compared."""
    followed = _with_gradient(pair)
    reasons = [re.compile(expression(pattern)) for pattern in _reasons(pair)]
    more = {
        name: tensor
        for name, tensor in pair.theirs.state_dict().items()
        if name not in tensors and any(pattern.fullmatch(name) for pattern in reasons)
    }
    return {name: tensor for name, tensor in {**tensors, **more}.items() if name not in followed}


def _with_gradient(pair: Pair) -> set[str]:
    found = gradients(pair)
    compared = {name for name in pair.case.joined(found.ours) if found.of(pair, name) is not None}
    return compared if pair.case.joined is dict else compared | found.ours.keys()


def _of_other_versions(pair: Pair, tensors: Mapping[str, Tensor]) -> list[str]:
    """A name for each pattern of ignored tensors that neither the file nor the class has."""
    known = [*tensors, *pair.theirs.state_dict()]
    patterns = [
        pattern for pattern in _reasons(pair) if not any(re.fullmatch(expression(pattern), name) for name in known)
    ]
    return [re.sub(r"\{\w+\}", "0", pattern).replace("*", "weight") for pattern in patterns]


def _reasons(pair: Pair) -> Reasons:
    entry = pair.family.architectures[pair.published.architecture]
    reasons = {**pair.family.ignored, **entry.ignored, **entry.kept, **entry.zeros}
    return {pair.family.written_name(pair.published.architecture, name): reason for name, reason in reasons.items()}
