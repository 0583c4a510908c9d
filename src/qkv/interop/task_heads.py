"""Heads of a published family for tasks other than the checkpoint's own, and their stored tensors."""

from __future__ import annotations

from torch import Tensor

from qkv.interop.folder import stored_tensors
from qkv.interop.mapping.family import matches, named_as_now, without_prefix
from qkv.interop.opened import Opened
from qkv.interop.save import covering
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.heads import Head

_OF_LABELS = ("id2label", "label2id", "num_labels", "problem_type")


def task_heads(published: Opened) -> dict[str, Head]:
    """Specs of the heads that the family of a checkpoint offers, by kind, such as "classification"."""
    values = {key: value for key, value in published.values.items() if key not in _OF_LABELS}
    family, _ = published._replace(values=values).family()
    found: dict[str, Head] = {}
    for architecture in family.architectures.values():
        for labels in (2, 1):  # one label: regression
            config = published._replace(values={**values, "num_labels": labels}).config()
            config.assume(family.defaults)
            try:
                head = architecture.head(config)
            except UserError:
                continue
            found.setdefault(head.kind, head)
    return found


def head_tensors(published: Opened, model: Transformer) -> dict[str, Tensor]:
    """Tensors of the head of ``model``, in fp32 by name, that a checkpoint holds although it was saved with another
    head (such as a pooler).
    """
    family, _ = published.family()
    cover = covering(model.spec, family.name)
    if cover is None or cover.family is not family:
        return {}
    stored = named_as_now(family, stored_tensors(published.folder))
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith("head.")}
    rows = family.rows(cover.architecture)
    if not any(name.startswith(family.prefix) for name in stored):
        rows = without_prefix(family, rows)
    found: dict[str, Tensor] = {}
    for match in matches(model, rows):
        if match.ours in shapes and all(name in stored for name in match.theirs):
            tensor = match.way.inward([at_least_single(stored[name].read()) for name in match.theirs], match.cut)
            if tensor.shape == shapes[match.ours]:
                found[match.ours] = tensor
    return found
