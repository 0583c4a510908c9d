"""Head of an image autoencoder: vector quantisation with a learned codebook, and a convolutional decoder."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.models.heads.head import Head
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import CodebookHead
from qkv.spec.register import implements
from qkv.system.errors import UserError

_EPS = 1e-5
"""Lower bound of code counts when they are divisors, to avoid division by 0."""


class Quantised(NamedTuple):
    """Result of vector quantisation: vectors z (B, N, d), their nearest codes q (B, N, d), and code indices (B, N)."""

    z: Tensor
    q: Tensor
    ids: Tensor


class Reconstruction(NamedTuple):
    """Reconstructed pixels (B, C, H, W), and the quantised vectors that they were decoded from."""

    pixels: Tensor
    codes: Quantised

    @property
    def commitment(self) -> Tensor:
        """Commitment loss: mean of (z - q)² over all features, without a gradient through q."""
        return (at_least_single(self.codes.z) - at_least_single(self.codes.q.detach())).square().mean()


class Codebook(nn.Module):
    """Codebook of K codes e_k of d features, moving averages of the vectors nearest to them (van den Oord et al. 2017,
    A.1).

    After a training batch in which Z_k are the vectors nearest to code k, with decay γ:

        n_k ← γ n_k + (1 - γ) |Z_k|     s_k ← γ s_k + (1 - γ) Σ Z_k     e_k = s_k / n_k

    A code whose n_k falls below ``restart`` is replaced by a random vector of the batch, with n_k = 1.
    """

    vectors: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, codes: int, width: int, decay: float, restart: float):
        super().__init__()
        self.decay, self.restart = decay, restart
        self.register_buffer("vectors", torch.zeros(codes, width))
        # With a count of 0, a code that is nearest to no vector of the first batch is replaced by a vector of that
        # batch.
        self.register_buffer("counts", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, width))

    def initialise(self) -> None:
        """Draw the codes from N(0, 1). With ``restart``, unused codes become vectors of the first batch."""
        nn.init.normal_(self.vectors)
        self.sums.copy_(self.vectors)
        self.counts.fill_(0.0 if self.restart else 1.0)

    def nearest(self, z: Tensor) -> Tensor:
        """Return the indices (B, N) of the codes nearest to z (B, N, d)."""
        codes = self.vectors.to(z.dtype)
        return (codes.square().sum(1) - 2 * z @ codes.T).argmin(-1)

    def forward(self, z: Tensor) -> Quantised:
        """Quantise z (B, N, d). In training mode, update the codes with z afterwards."""
        z = at_least_single(z)
        ids = self.nearest(z.detach())
        q = F.embedding(ids, self.vectors.to(z.dtype))
        if self.training:
            self.update(z.detach().flatten(0, 1), ids.flatten())
        return Quantised(z, q, ids)

    @torch.no_grad()
    def update(self, z: Tensor, ids: Tensor) -> None:
        """Update the moving averages with the vectors z (T, d) of a batch; ``ids`` (T): indices of the nearest
        codes.
        """
        z, share = z.to(self.sums.dtype), 1 - self.decay
        used = torch.zeros_like(self.counts).index_add(0, ids, z.new_ones(len(ids)))
        counts = self.decay * self.counts + share * used
        sums = self.decay * self.sums + share * torch.zeros_like(self.sums).index_add(0, ids, z)
        if self.restart:
            rare = counts < self.restart
            drawn = z[torch.randint(len(z), (len(counts),), device=z.device)]
            counts = torch.where(rare, 1.0, counts)
            sums = torch.where(rare[:, None], drawn, sums)
        self.counts.copy_(counts)
        self.sums.copy_(sums)
        self.vectors.copy_(sums / counts.clamp(min=_EPS)[:, None])


@implements(CodebookHead)
class CodebookDecoder(Head):
    """Vector quantisation and decoder: x (B, N, D) of N = rows · columns positions -> pixels (B, C, H, W).

    The decoded picture is cropped at the bottom and on the right to the height and width of the images.
    """

    def __init__(self, part: CodebookHead, width: int, table: object):
        super().__init__()
        if None in (part.grid, part.cell, part.height, part.width, part.channels):
            raise UserError("model.head: the size of the images is not known; build the model together with its data")
        assert part.grid is not None
        assert part.cell is not None
        self.part, self.grid = part, (part.grid[0], part.grid[1])
        self.num_outputs = (part.channels or 1) * (part.height or 1) * (part.width or 1)
        self.map = Linear(width, part.code_width)
        self.codebook = Codebook(part.codes, part.code_width, part.decay, part.restart)
        channels, scale = (width, *part.upsampling), part.cell // 2 ** len(part.upsampling)
        self.first = nn.Conv2d(part.code_width, width, 3, padding=1)
        self.steps = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in pairwise(channels))
        self.last = nn.Conv2d(channels[-1], (part.channels or 1) * scale * scale, 3, padding=1)
        self.scale = scale

    def layouts(self) -> Layouts:
        convolutions = ("first", *(f"steps.{i}" for i in range(len(self.steps))), "last")
        return dict.fromkeys(convolutions, WHOLE)

    def initialise(self, std: float) -> None:
        """Initialise the convolutions as in He et al. 2015, and the codes from N(0, 1)."""
        self.codebook.initialise()
        for layer in (self.first, *self.steps, self.last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.reconstructed(x).pixels

    def reconstructed(self, x: Tensor) -> Reconstruction:
        """Quantise and decode vectors x (B, N, D); gradients pass from the codes to z unchanged (straight-through)."""
        codes = self.codebook(self.map(x))
        return Reconstruction(self.decoded(codes.z + (codes.q - codes.z).detach()), codes)

    def ids(self, x: Tensor) -> Tensor:
        """Return the code indices (B, N) of vectors x (B, N, D)."""
        return self.codebook.nearest(at_least_single(self.map(x)))

    def pixels(self, ids: Tensor) -> Tensor:
        """Decode code indices ``ids`` (B, N) to pixels (B, C, H, W)."""
        return self.decoded(F.embedding(ids, self.codebook.vectors))

    def decoded(self, q: Tensor) -> Tensor:
        """Decode quantised vectors q (B, N, d) to pixels (B, C, H, W)."""
        rows, columns = self.grid
        if q.shape[1] != rows * columns:
            raise UserError(f"the head decodes {rows} × {columns} codes, the input has {q.shape[1]}; use whole images")
        x = self.first(q.to(self.first.weight.dtype).mT.unflatten(-1, (rows, columns)))
        for step in self.steps:
            x = step(F.relu(x))
        pixels = F.pixel_shuffle(self.last(F.relu(x)), self.scale)
        return pixels[..., : self.part.height, : self.part.width]

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        shape = rows, self.part.channels or 1, self.part.height or 1, self.part.width or 1
        return torch.randn(shape, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Squared error Σ (pixel - target)²; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs) - targets).square().sum()
