"""Normalisation layers, (B, N, D) -> (B, N, D)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.observable import Observable, Points, standard
from qkv.ops.at_least_single import single_or_wider
from qkv.spec import parts as spec
from qkv.spec.register import implementation, implements


class Norm(Observable, nn.Module):
    """Base class of normalisation layers, called with x (B, N, D) and the context, from which some read the padding."""

    over_batch = False
    """True if the rows of a batch are normalised together in training."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        raise NotImplementedError


class ScaledNorm(Norm):
    """Base class of norms that divide each vector by a scale, computed from its mean square."""

    def points(self) -> Points:
        return standard("scale")

    def divided(self, x: Tensor, context: Context, eps: float | None) -> Tensor | None:
        """Divide x (B, N, D), from which the mean is already subtracted, by a tap's replacement of the scale.

        Return None if the tap does not replace the scale, which is sqrt(mean(x²) + eps), (B, N, 1). ``eps`` None: the
        machine epsilon of x's dtype.
        """
        if context.tap is None:
            return None
        added = torch.finfo(x.dtype).eps if eps is None else eps
        scale = self.offer_computed(context.tap, "scale", lambda: (x.square().mean(-1, keepdim=True) + added).sqrt())
        return None if scale is None else x / scale


class LayerNorm(ScaledNorm):
    """Layer norm: (x - mean) / sqrt(var + eps) * weight + bias over D (Ba et al. 2016)."""

    def __init__(self, part: spec.LayerNorm, width: int):
        super().__init__()
        self.part, self.shape = part, (width,)
        self.weight = nn.Parameter(torch.ones(width)) if part.weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if part.bias else None
        self.eps = part.eps

    def factor(self) -> Tensor | None:
        """Return the factors (D) that scale the features; None if the norm has no weights."""
        return self.weight

    def forward(self, x: Tensor, context: Context) -> Tensor:
        factor = self.factor()
        if self.offers(context.tap, "scale"):
            divided = self.divided(x - x.mean(-1, keepdim=True), context, self.eps)
            if divided is not None:
                scaled = divided if factor is None else divided * factor
                return scaled if self.bias is None else scaled + self.bias
        return torch.layer_norm(x, self.shape, factor, self.bias, self.eps)


class ZeroCentredLayerNorm(LayerNorm):
    """Layer norm with the factor 1 + weight (Nemotron-4, Parmar et al. 2024)."""

    def __init__(self, part: spec.LayerNorm, width: int):
        super().__init__(part, width)
        self.weight = nn.Parameter(torch.zeros(width))

    def factor(self) -> Tensor:
        assert self.weight is not None
        return 1 + self.weight


@implements(spec.LayerNorm)
def _layer_norm(part: spec.LayerNorm, width: int) -> Norm:
    return (ZeroCentredLayerNorm if part.zero_centred else LayerNorm)(part, width)


class RMSNorm(ScaledNorm):
    """RMS norm: x / sqrt(mean(x²) + eps) * weight over D (Zhang & Sennrich 2019)."""

    def __init__(self, part: spec.RMSNorm, width: int):
        super().__init__()
        self.part = part
        self.weight = nn.Parameter(torch.ones(width)) if part.weight else None
        self.width, self.eps = width, part.eps

    def forward(self, x: Tensor, context: Context) -> Tensor:
        # Torch's fused kernel needs one dtype; under autocast x may be narrower than the weight.
        weight = None if self.weight is None else self.weight.to(x.dtype)
        divided = self.divided(x, context, self.eps)
        if divided is not None:
            return divided if weight is None else divided * weight
        return F.rms_norm(x, (self.width,), weight, self.eps)


class ZeroCentredRMSNorm(ScaledNorm):
    """RMS norm with x / sqrt(mean(x²) + eps) * (1 + weight) over D (Gemma, 2024), computed in fp32 or wider."""

    def __init__(self, part: spec.RMSNorm, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = part.eps

    def forward(self, x: Tensor, context: Context) -> Tensor:
        wide = single_or_wider(x.dtype)
        divided = self.divided(x.to(wide), context, self.eps)
        if divided is not None:
            return (divided * (1 + self.weight.to(wide))).to(x.dtype)
        return F.rms_norm(x.to(wide), self.weight.shape, 1 + self.weight.to(wide), self.eps).to(x.dtype)


@implements(spec.RMSNorm)
def _rms_norm(part: spec.RMSNorm, width: int) -> Norm:
    return (ZeroCentredRMSNorm if part.zero_centred else RMSNorm)(part, width)


@implements(spec.BatchNorm)
class BatchNorm(Norm):
    """Batch norm: (x - mean) / sqrt(var + eps) * weight + bias, per feature over all unpadded tokens of the batch.

    In evaluation mode running statistics are used (Ioffe & Szegedy 2015).
    """

    over_batch = True
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, part: spec.BatchNorm, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.eps, self.momentum = part.eps, part.momentum

    def forward(self, x: Tensor, context: Context) -> Tensor:
        valid = context.valid
        tokens = x.flatten(0, 1) if valid is None else x[valid]
        training = self.training and tokens.shape[0] > 1
        statistics = self.running_mean, self.running_var
        out = F.batch_norm(tokens, *statistics, self.weight, self.bias, training, self._momentum(context), self.eps)
        return out.view_as(x) if valid is None else torch.zeros_like(x, dtype=out.dtype).index_put((valid,), out)

    def _momentum(self, context: Context) -> float:
        """Return the momentum of the running statistics; 0 if activation checkpointing repeats the forward pass."""
        if torch.compiler.is_compiling():
            return self.momentum
        counted = ("counted", id(self)) in context.memo
        context.memo["counted", id(self)] = True
        return 0.0 if counted else self.momentum


@implements(spec.GridNorm)
class GridNorm(Norm):
    """Norm of all vectors of a row at once: (x - mean) / sqrt(var + eps) * weight + bias over N and D (Wu & He 2018).

    Raises ``UserError`` for positions that are not on a grid, where later positions could be hidden.
    """

    def __init__(self, part: spec.GridNorm, width: int):
        super().__init__()
        self.part = part
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        context.on_grid(self.part.axes, self.part.kind)
        return torch.layer_norm(x, x.shape[1:], None, None, self.part.eps) * self.weight + self.bias


@implements(spec.NoNorm)
class NoNorm(Norm):
    """Identity, as a normalisation layer."""

    def __init__(self, part: spec.NoNorm, width: int):
        super().__init__()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return x


def build_norm(part: spec.Norm, width: int) -> Norm:
    """Build the normalisation layer of a norm spec for ``width`` features."""
    return implementation(part, "qkv.layers")(part, width)
