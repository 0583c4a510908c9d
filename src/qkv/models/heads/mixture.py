"""Head for continuous vectors: a mixture of Gaussians at each position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.models.heads.forecasts import gaussian_nats, positive
from qkv.models.heads.head import Head
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import MixtureHead
from qkv.spec.register import implements
from qkv.system.errors import UserError


class Mixture(NamedTuple):
    """Mixtures of K Gaussians: log weights (…, K), means and standard deviations (…, K, F)."""

    weights: Tensor
    means: Tensor
    deviations: Tensor

    def nats(self, y: Tensor) -> Tensor:
        """Return -log p(y) in nats, (…), of vectors y (…, F)."""
        each = gaussian_nats(self.means, self.deviations, y[..., None, :]).sum(-1)
        return -(self.weights - each).logsumexp(-1)


@implements(MixtureHead)
class MixtureOfGaussians(Head):
    """Mixture of K Gaussians with diagonal covariance: x (B, N, D) -> raw outputs (B, N, K (1 + 2 F))."""

    def __init__(self, part: MixtureHead, width: int, table: object):
        super().__init__()
        if part.features is None:
            raise UserError("model.head.features is unknown: set it, or build the model together with its data")
        self.components, self.features = part.components, part.features
        self.num_outputs = part.components * (1 + 2 * part.features)
        self.output = Linear(width, self.num_outputs)

    def initialise(self, std: float) -> None:
        """Draw the biases of the means from N(0, 1), so that the components differ."""
        first = self.components
        with torch.no_grad():
            assert self.output.bias is not None
            nn.init.normal_(self.output.bias[first : first + self.components * self.features])

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.output(x)

    def mixture(self, outputs: Tensor) -> Mixture:
        """Convert raw outputs (…, K (1 + 2 F)) to mixtures."""
        count = self.components * self.features
        weights, means, raw = at_least_single(outputs).split((self.components, count, count), -1)
        shape = (self.components, self.features)
        return Mixture(weights.log_softmax(-1), means.unflatten(-1, shape), positive(raw).unflatten(-1, shape))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length, self.features, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return -Σ log p(y) of vectors y (B, N, F); ``smoothing`` is ignored, because targets are numbers."""
        return self.mixture(outputs).nats(targets).sum()

    def drawn(self, outputs: Tensor, generators: list[torch.Generator], temperature: float = 1.0) -> Tensor:
        """Draw vectors (B, F) from the mixtures of ``outputs`` (B, K (1 + 2 F)), with one generator per row.

        Log weights are divided by the temperature, and standard deviations multiplied by it. At temperature 0, return
        the mean of the component with the greatest weight.
        """
        mixture = self.mixture(outputs)
        rows = torch.arange(len(outputs))
        if temperature == 0:
            return mixture.means[rows, mixture.weights.argmax(-1)]
        uniform = torch.stack([torch.rand((), generator=each, dtype=torch.float64) for each in generators])
        total = (mixture.weights.double().cpu() / temperature).softmax(-1).cumsum(-1)
        chosen = (total < uniform[:, None] * total[:, -1:]).sum(-1).clamp(max=self.components - 1)
        noise = torch.stack([torch.randn(self.features, generator=each) for each in generators]).to(outputs.device)
        return mixture.means[rows, chosen] + temperature * mixture.deviations[rows, chosen] * noise
