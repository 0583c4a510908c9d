"""Feature maps of linear attention, (B, H, N, Dk) -> (B, H, N, M), positive."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.ops.at_least_single import at_least_single
from qkv.ops.linear_attention.reference import feature
from qkv.spec.mixers import linear_attention as spec
from qkv.spec.register import implements


class FeatureMap(nn.Module):
    """Base class of feature maps; ``num_features`` M per head of ``head_dim`` features."""

    num_features: int

    def forward(self, x: Tensor, context: Context, of_queries: bool) -> Tensor:
        """Compute the features (B, H, N, M) of queries or of keys x (B, H, N, Dk).

        The features of a query may have any scale, which cancels in the normalised attention weights.
        """
        raise NotImplementedError


@implements(spec.Elu)
class Elu(FeatureMap):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020)."""

    def __init__(self, part: spec.Elu, num_heads: int, head_dim: int):
        super().__init__()
        self.num_features = head_dim

    def forward(self, x: Tensor, context: Context, of_queries: bool) -> Tensor:
        return feature(x)


@implements(spec.Favor)
class Favor(FeatureMap):
    """φ(x) = e^(ω x' - |x'|² / 2) / √M, x' = x / Dk^(1/4) (FAVOR+, Choromanski et al. 2021).

    The directions ω (H, M, Dk) are not learned. With ``redraw``, training draws new directions. Their seed depends on
    the number of steps taken, which is saved with the weights, so that a resumed run draws the same directions.
    """

    directions: Tensor
    seed: Tensor
    steps: Tensor

    def __init__(self, part: spec.Favor, num_heads: int, head_dim: int):
        super().__init__()
        self.part, self.num_features = part, part.num_features
        seed = int(torch.randint(2**31, (), device="cpu")) if part.seed is None else part.seed
        self.register_buffer("seed", torch.tensor(seed))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("directions", directions(part, num_heads, head_dim, seed))

    def forward(self, x: Tensor, context: Context, of_queries: bool) -> Tensor:
        if self.part.redraw is not None and self.training and of_queries:
            self._count(context)
        x = at_least_single(x) * x.shape[-1] ** -0.25
        logits = x @ self.directions.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
        if of_queries:  # the scale of a query cancels; the exponential of its largest feature becomes 1
            logits = logits - logits.detach().amax(-1, keepdim=True)
        return logits.exp() * self.num_features**-0.5

    def _count(self, context: Context) -> None:
        """Count a training step, only once if activation checkpointing repeats it; draw new directions when due."""
        if ("counted", id(self)) in context.memo:
            return
        context.memo["counted", id(self)] = True
        self.steps += 1
        done, redraw = int(self.steps), self.part.redraw
        assert redraw is not None
        if done % redraw == 0:
            heads, _, head_dim = self.directions.shape
            self.directions.copy_(directions(self.part, heads, head_dim, int(self.seed) + done // redraw))


def directions(part: spec.Favor, num_heads: int, head_dim: int, seed: int) -> Tensor:
    """Draw random directions (H, M, Dk): Gaussian vectors, orthogonal in groups of Dk if ``part.orthogonal``.

    They are drawn on the CPU, so that they are the same on all devices. On the meta device the result has no values.
    """
    device = torch.get_default_device()
    if device.type == "meta":
        return torch.empty(num_heads, part.num_features, head_dim, device=device)
    with torch.device("cpu"):
        return _drawn(part, num_heads, head_dim, seed).to(device)


def _drawn(part: spec.Favor, num_heads: int, head_dim: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed % 2**63)
    groups = math.ceil(part.num_features / head_dim)
    matrices = torch.randn(num_heads, groups, head_dim, head_dim, generator=draw, dtype=torch.float64)
    if part.orthogonal:
        lengths = matrices.norm(dim=-1, keepdim=True)
        independent = torch.randn(matrices.shape, generator=draw, dtype=torch.float64)
        q, r = torch.linalg.qr(independent)
        # Only with a positive diagonal of R are the directions of Q uniform (Mezzadri 2007), and φ(q) · φ(k) unbiased.
        matrices = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :] * lengths
    return matrices.flatten(1, 2)[:, : part.num_features].to(torch.get_default_dtype())
