"""Clustering of hidden states over the depth of a model, and of the model without residuals or feed-forward."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from qkv.layers.observable import list_points
from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Tap
from qkv.lens.views.hidden_similarity import hidden_similarity
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


class WithoutParts(Tap):
    """Tap that sets the outputs of some branches to 0, and leaves the residual stream out after other branches.

    silent: paths of branches, such as "blocks.0.branches.1".   alone: paths of branches after which the stream is their
    output, as without a residual connection (Dong et al. 2021).
    """

    def __init__(self, silent: frozenset[str], alone: frozenset[str]):
        paths = [f"{path}.output" for path in sorted(silent | alone)]
        super().__init__(*paths, *(f"{path}.residual_after" for path in sorted(alone)))
        self.silent, self.alone = silent, alone
        self.outputs: dict[str, Tensor] = {}

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        if location.point == "residual_after":
            return self.outputs[location.module]
        self.outputs[location.module] = value
        return value * 0 if location.module in self.silent else None


def similarity_over_depth(model: Transformer, signal: Signal | Tensor) -> Mapping[str, list[float]]:
    """Return the mean cosine of the vectors of two positions at each depth, by variant of the model.

    Depths are the points of the residual stream: the input of the blocks, and the stream after each branch. Variants:
    "as it is", "no feed-forward", "no residual", and "attention alone" (neither). Without a residual the stream after a
    mixer is the mixer's output alone; feed-forward branches keep theirs. Raises ``UserError`` for a model without
    blocks or with a single position.
    """
    branches = {path.removesuffix(".output") for path in list_points(model) if path.startswith("blocks.")}
    mixers = frozenset(b.name for b in model.branches if b.spec.mixes and b.name in branches)
    rest = frozenset(b.name for b in model.branches if not b.spec.mixes and b.name in branches)
    if not mixers:
        raise UserError("the model has no block that mixes positions, so its tokens cannot attract each other")
    none = frozenset[str]()
    variants = {
        "as it is": (none, none),
        "no feed-forward": (rest, none),
        "no residual": (none, mixers),
        "attention alone": (rest, mixers),
    }
    result: dict[str, list[float]] = {}
    for name, (silent, alone) in variants.items():
        with model.tapped(WithoutParts(silent, alone)):
            means = hidden_similarity(model, signal).mean[:, 0]
        result[name] = means.tolist()
    return result
