"""Heads of a published family for other tasks than the checkpoint's, and their tensors in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import cast

from torch import Tensor

from qkv.interop.checkpoint import PublishedCheckpoint
from qkv.interop.mapping.family import Architecture, named_as_now, without_prefix
from qkv.interop.mapping.names import matches
from qkv.interop.save import covering
from qkv.interop.sentence import SentencePooling
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import Head, Pooled
from qkv.spec.model import Model
from qkv.system.errors import UserError

_OF_LABELS = ("id2label", "label2id", "num_labels", "problem_type")
_HIDDEN = "head.hidden"


def task_heads(published: PublishedCheckpoint, settings: SentencePooling | None, model: Model) -> dict[str, Head]:
    """Return the specs of the task heads that a checkpoint supports, by kind, such as "classification".

    Heads that pool use the pooling ``settings`` of sentence-transformers files, if there is one. Otherwise they pool as
    the family's head does if the checkpoint contains that head's hidden layer (a pooler), because the layer was trained
    with this pooling. Otherwise they use the mean of the vectors, or the last vector of a causal ``model``: the first
    vector of an encoder that was pretrained by masking tokens was never trained to represent the text (Reimers &
    Gurevych 2019). The class token of an image encoder was, so heads of image models read it.
    """
    specs = {head.kind: (head, architecture) for head, architecture in _of_family(published)}
    heads = {kind: head for kind, (head, _) in specs.items()}
    for kind, part in Head.kinds().items():
        if part.pools and not part.reads_memory and settings is not None:
            heads[kind] = settings.head(cast("type[Pooled]", part), getattr(heads.get(kind), "dropout", 0.0))
        elif part.pools and kind in specs:
            heads[kind] = _trained(published, cast("Pooled", heads[kind]), specs[kind][1], model)
    return heads


def _of_family(published: PublishedCheckpoint) -> Iterator[tuple[Head, Architecture]]:
    """Yield (head, architecture) for the architectures of a checkpoint's family, with the values in its config.

    If several have the same kind of head, the last one is used.
    """
    values = {key: value for key, value in published.values.items() if key not in _OF_LABELS}
    family, _ = published._replace(values=values).family()
    for architecture in reversed(list(family.architectures.values())):
        for labels in (1, 2):  # one label: regression
            config = published._replace(values={**values, "num_labels": labels}).config()
            config.assume(family.defaults)
            with suppress(UserError):
                yield architecture.head(config), architecture


def _trained(published: PublishedCheckpoint, head: Pooled, architecture: Architecture, model: Model) -> Pooled:
    """Return ``head`` if the checkpoint contains its hidden layer, or if its pooling suits the model.

    Otherwise return a head without a hidden layer and with a suitable pooling.
    """
    family, _ = published.family()
    suits = "last" if model.causal else "mean"
    if head.pooling == suits or model.frontend.processor is not None:
        return head
    names = named_as_now(family, published.tensors()).keys()
    rows = [row for row in architecture.names if row.ours.startswith(_HIDDEN)]
    theirs = [name.replace("*", "weight") for row in rows for name in row.published]
    if theirs and all(name in names or name.removeprefix(family.prefix) in names for name in theirs):
        return head
    return type(head).model_validate({"pooling": suits, "dropout": getattr(head, "dropout", 0.0)})


def head_tensors(published: PublishedCheckpoint, model: Transformer) -> dict[str, Tensor]:
    """Read the tensors of the head of ``model`` that a checkpoint contains, by name, in fp32.

    A checkpoint saved with another head may contain a part of it, such as a pooler.
    """
    family, _ = published.family()
    cover = covering(model.spec, family.name)
    if cover is None or cover.family is not family:
        return {}
    stored = named_as_now(family, published.tensors())
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith("head.")}
    rows = family.rows(cover.architecture)
    if not any(name.startswith(family.prefix) for name in stored):
        rows = without_prefix(family, rows)
    tensors: dict[str, Tensor] = {}
    for match in matches(model, rows):
        if match.ours in shapes and all(name in stored for name in match.theirs):
            tensor = match.way.inward([at_least_single(stored[name].read()) for name in match.theirs], match.cut)
            if tensor.shape == shapes[match.ours]:
                tensors[match.ours] = tensor
    return tensors
