"""Heads of a published family for tasks other than the checkpoint's own, and their stored tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from qkv.interop.folder import read_json, stored_tensors
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import choose, matches, named_as_now, without_prefix
from qkv.interop.places import CONFIG
from qkv.interop.registry import FAMILIES
from qkv.interop.save import covering
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.heads import Head
from qkv.spec.model import Model

_OF_LABELS = ("id2label", "label2id", "num_labels", "problem_type")


def task_heads(folder: Path) -> dict[str, Head]:
    """Heads by kind that the family of the checkpoint in ``folder`` offers."""
    values = {key: value for key, value in read_json(folder / CONFIG).items() if key not in _OF_LABELS}
    family, _ = choose(FAMILIES, Config(values, str(folder / CONFIG)))
    found: dict[str, Head] = {}
    for architecture in family.architectures.values():
        for labels in (2, 1):  # one label: regression
            config = Config({**values, "num_labels": labels}, str(folder / CONFIG))
            config.assume(family.defaults)
            try:
                head = architecture.head(config)
            except UserError:
                continue
            found.setdefault(head.kind, head)
    return found


def head_tensors(folder: Path, spec: Model) -> dict[str, Tensor]:
    """Stored tensors, in fp32, of the head of ``spec`` that the checkpoint in ``folder`` holds although saved with another head (a pooler)."""
    values = read_json(folder / CONFIG)
    family, _ = choose(FAMILIES, Config(values, str(folder / CONFIG)))
    cover = covering(spec, family.name)
    if cover is None or cover.family is not family:
        return {}
    stored = named_as_now(family, stored_tensors(folder))
    with torch.device("meta"):
        bare = Transformer(spec)
    shapes = {name: tensor.shape for name, tensor in bare.state_dict().items() if name.startswith("head.")}
    rows = family.rows(cover.architecture)
    if not any(name.startswith(family.prefix) for name in stored):
        rows = without_prefix(family, rows)
    found: dict[str, Tensor] = {}
    for match in matches(bare, rows):
        if match.ours in shapes and all(name in stored for name in match.theirs):
            tensor = match.way.inward([at_least_single(stored[name].read()) for name in match.theirs], match.cut)
            if tensor.shape == shapes[match.ours]:
                found[match.ours] = tensor
    return found
