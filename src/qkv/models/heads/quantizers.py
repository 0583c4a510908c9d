"""Quantizers: vectors z (B, N, D) to codes (B, N, K) and back; gradients pass from the codes to z (straight-through).

Each is called with z and returns ``Coded``. In training mode, a random number of first codebooks may be used.
"""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.layout import ROWS, Declared, Layouts
from qkv.layers.linear.linear import Linear
from qkv.models.heads.codebook import Codebook
from qkv.ops.at_least_single import at_least_single
from qkv.spec.models import quantizers as spec
from qkv.spec.register import implementation, implements


class Coded(NamedTuple):
    """Quantised vectors q (B, N, D), their codes ids (B, N, n) of the first n codebooks, and the quantizer's loss."""

    q: Tensor
    ids: Tensor
    loss: Tensor


class Quantizer(Declared):
    """Base class of quantizers. Constructed as ``cls(part, width)``; ``width``: features D of the vectors."""

    def __init__(self, part: spec.Quantizer, width: int):
        super().__init__()
        self.part, self.width = part, width

    def initialise(self) -> None:
        """Initialise the codes."""

    def num_drawn(self, z: Tensor) -> int:
        """Return the number of codebooks of the batch z: in training, a random one with the part's probability."""
        count = self.part.codebooks
        if not self.training or z.is_meta or count == 1 or torch.rand(()).item() >= self.part.dropout:
            return count
        return int(torch.randint(1, count + 1, ()).item())

    def forward(self, z: Tensor, codebooks: int | None = None) -> Coded:
        """Quantise z with the first ``codebooks`` codebooks; by default with all, in training with a random number."""
        return self.coded(at_least_single(z), codebooks or self.num_drawn(z))

    @abstractmethod
    def coded(self, z: Tensor, codebooks: int) -> Coded:
        """Quantise z with the first ``codebooks`` codebooks."""

    @abstractmethod
    def vectors(self, ids: Tensor) -> Tensor:
        """Return the vectors (B, N, D) of codes ``ids`` (B, N, n) of the first n codebooks."""


@implements(spec.ScalarQuantizer)
class ScalarQuantizer(Quantizer):
    """Finite scalar quantisation: v = W z + b, u = round(bounded(v)) / ⌊L / 2⌋, q = U u + c.

    v and u have d numbers for each of K codebooks. A number with L levels is bounded to (-L/2, L/2 - 1) if L is even,
    and to (-(L-1)/2, (L-1)/2) if L is odd. If only the first codebooks are used, u is 0 in the others.
    """

    part: spec.ScalarQuantizer
    MARGIN = 1e-3
    """Relative distance of the bounds from the outermost levels."""

    def __init__(self, part: spec.ScalarQuantizer, width: int):
        super().__init__(part, width)
        numbers = part.codebooks * len(part.levels)
        self.into, self.out = Linear(width, numbers), Linear(numbers, width)
        self.basis = tuple(prod(part.levels[:i]) for i in range(len(part.levels)))

    def initialise(self) -> None:
        """Initialise the maps so that vectors of unit variance give numbers v of unit variance."""
        for layer in (self.into, self.out):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def bounded(self, v: Tensor) -> Tensor:
        """Bound numbers v (…, d) so that rounding gives one of the levels: a tanh that maps 0 to 0."""
        levels = torch.tensor(self.part.levels, dtype=v.dtype, device=v.device)
        half = (levels - 1) * (1 - self.MARGIN) / 2
        offset = (1 - levels % 2) / 2  # the middle of an even number of levels is no level
        return (v + (offset / half).atanh()).tanh() * half - offset

    def coded(self, z: Tensor, codebooks: int) -> Coded:
        v = at_least_single(self.into(z)).unflatten(-1, (self.part.codebooks, -1))[..., :codebooks, :]
        smooth = self.bounded(v)
        rounded = smooth + (smooth.round() - smooth).detach()
        half = torch.tensor(self.part.levels, device=z.device) // 2
        ids = ((rounded.detach().long() + half) * torch.tensor(self.basis, device=z.device)).sum(-1)
        return Coded(self._vectors(rounded / half), ids, z.new_zeros(()))

    def vectors(self, ids: Tensor) -> Tensor:
        levels, basis = (torch.tensor(each, device=ids.device) for each in (self.part.levels, self.basis))
        half = levels // 2
        steps = ids[..., None] // basis % levels - half
        return self._vectors(steps.to(self.out.weight.dtype) / half)

    def _vectors(self, values: Tensor) -> Tensor:
        """Map values (B, N, n, d) in [-1, 1] of the first n codebooks to vectors (B, N, D)."""
        absent = self.part.codebooks - values.shape[-2]
        return self.out(F.pad(values, (0, 0, 0, absent)).flatten(-2))


@implements(spec.ResidualQuantizer)
class ResidualQuantizer(Quantizer):
    """Residual vector quantisation by K codebooks: q = Σ q_k, q_k = code nearest to r_k, r_{k+1} = r_k - q_k.

    loss: Σ_k mean (r_k - q_k)², times the part's ``commitment``, without a gradient through the codes.
    """

    part: spec.ResidualQuantizer

    def __init__(self, part: spec.ResidualQuantizer, width: int):
        super().__init__(part, width)
        size = part.code_width or width
        self.into = None if part.code_width is None else Linear(width, size, bias=False)
        self.out = None if part.code_width is None else Linear(size, width, bias=False)
        self.books = nn.ModuleList(Codebook(part.codes, size, part.decay, part.restart) for _ in range(part.codebooks))

    def layouts(self) -> Layouts:
        return {f"books.{i}.{name}": ROWS for i in range(len(self.books)) for name in ("vectors", "sums")}

    def initialise(self) -> None:
        """Draw the codes from N(0, 1); with ``restart``, unused codes become residuals of the first batch."""
        for book in self.books:
            book.initialise()  # type: ignore[operator]

    def coded(self, z: Tensor, codebooks: int) -> Coded:
        x = z if self.into is None else at_least_single(self.into(z))
        rest, total, ids, losses = x, torch.zeros_like(x), list[Tensor](), list[Tensor]()
        for book in self.books[:codebooks]:
            codes = book(rest)
            losses.append((rest - codes.q.detach()).square().mean())
            total, rest = total + codes.q, rest - codes.q.detach()
            ids.append(codes.ids)
        q = x + (total - x).detach()
        return Coded(self._wide(q), torch.stack(ids, -1), self.part.commitment * torch.stack(losses).sum())

    def vectors(self, ids: Tensor) -> Tensor:
        books = zip(ids.unbind(-1), self.books, strict=False)
        return self._wide(torch.stack([F.embedding(each, book.vectors) for each, book in books]).sum(0))  # type: ignore[arg-type]

    def _wide(self, q: Tensor) -> Tensor:
        return q if self.out is None else self.out(q)


@implements(spec.SplitQuantizer)
class SplitQuantizer(Quantizer):
    """Two residual quantisers of the same vectors, whose codes follow each other; q and loss are their sums."""

    part: spec.SplitQuantizer

    def __init__(self, part: spec.SplitQuantizer, width: int):
        super().__init__(part, width)
        fields = {name: getattr(part, name) for name in spec.ResidualQuantizer.model_fields if name != "codebooks"}
        counts = (part.semantic, part.codebooks - part.semantic)
        parts = [spec.ResidualQuantizer(codebooks=count, **fields) for count in counts]
        self.semantic, self.acoustic = (ResidualQuantizer(each, width) for each in parts)

    def initialise(self) -> None:
        """Initialise the codes of both."""
        self.semantic.initialise()
        self.acoustic.initialise()

    def num_drawn(self, z: Tensor) -> int:
        """Return the number of codebooks of the batch z; all of the first quantiser are among them."""
        return max(self.part.semantic, super().num_drawn(z))

    def coded(self, z: Tensor, codebooks: int) -> Coded:
        first = self.semantic.coded(z, min(codebooks, self.part.semantic))
        if codebooks <= self.part.semantic:
            return first
        second = self.acoustic.coded(z, codebooks - self.part.semantic)
        return Coded(first.q + second.q, torch.cat((first.ids, second.ids), -1), first.loss + second.loss)

    def vectors(self, ids: Tensor) -> Tensor:
        first, second = ids[..., : self.part.semantic], ids[..., self.part.semantic :]
        q = self.semantic.vectors(first)
        return q + self.acoustic.vectors(second) if second.shape[-1] else q


class AngleCodebook(Declared):
    """Codebook in few dimensions: z = W r + b, e = the code of the smallest angle to z, q = U e + c."""

    def __init__(self, part: spec.ProjectedQuantizer, width: int):
        super().__init__()
        self.into, self.out = Linear(width, part.code_width), Linear(part.code_width, width)
        self.vectors = nn.Parameter(torch.zeros(part.codes, part.code_width))

    def layouts(self) -> Layouts:
        return {"vectors": ROWS}

    def nearest(self, z: Tensor) -> Tensor:
        """Return the indices (B, N) of the codes with the smallest angles to z (B, N, d)."""
        return (F.normalize(z, dim=-1) @ F.normalize(self.vectors.to(z.dtype), dim=-1).T).argmax(-1)

    def forward(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Quantise r (B, N, D); return (q (B, N, D), ids (B, N), commitment loss, codebook loss)."""
        z = at_least_single(self.into(r))
        ids = self.nearest(z.detach())
        e = at_least_single(F.embedding(ids, self.vectors))
        commitment, codebook = (z - e.detach()).square().mean(), (e - z.detach()).square().mean()
        return self.out(z + (e - z).detach()), ids, commitment, codebook

    def wide(self, ids: Tensor) -> Tensor:
        """Return the vectors (B, N, D) of codes (B, N)."""
        return self.out(F.embedding(ids, self.vectors))


@implements(spec.ProjectedQuantizer)
class ProjectedQuantizer(Quantizer):
    """Residual quantisation by K codebooks in few dimensions; loss: Σ_k (codebook + ``commitment`` · commitment)."""

    part: spec.ProjectedQuantizer

    def __init__(self, part: spec.ProjectedQuantizer, width: int):
        super().__init__(part, width)
        self.books = nn.ModuleList(AngleCodebook(part, width) for _ in range(part.codebooks))

    def initialise(self) -> None:
        """Draw the codes from N(0, 1)."""
        for book in self.books:
            nn.init.normal_(book.vectors)  # type: ignore[arg-type]

    def coded(self, z: Tensor, codebooks: int) -> Coded:
        rest, total, ids, losses = z, torch.zeros_like(z), list[Tensor](), list[Tensor]()
        for book in self.books[:codebooks]:
            q, index, commitment, codebook = book(rest)
            losses.append(codebook + self.part.commitment * commitment)
            total, rest = total + q, rest - q
            ids.append(index)
        return Coded(total, torch.stack(ids, -1), torch.stack(losses).sum())

    def vectors(self, ids: Tensor) -> Tensor:
        books = zip(ids.unbind(-1), self.books, strict=False)
        return torch.stack([book.wide(each) for each, book in books]).sum(0)  # type: ignore[operator]


def build_quantizer(part: spec.Quantizer, width: int) -> Quantizer:
    """Build the module of a quantizer for vectors of ``width`` features."""
    return implementation(part, "qkv.models")(part, width)
