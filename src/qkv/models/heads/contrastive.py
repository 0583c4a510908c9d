"""Head of wav2vec 2.0's pretraining: quantised latent vectors, told apart by the vectors of masked positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.models.heads.head import Head
from qkv.ops.at_least_single import at_least_single
from qkv.spec.heads import ContrastiveHead
from qkv.spec.register import implements
from qkv.system.errors import UserError


class ChosenCodes(NamedTuple):
    """Codes of latent vectors: their ids (…, G), the map of the joined codes (…, P), and probabilities (…, G, V)."""

    ids: Tensor
    vectors: Tensor
    chances: Tensor


@implements(ContrastiveHead)
class ContrastivePretrainer(Head):
    """Head of contrastive pretraining (Baevski et al. 2020): outputs c = W x + b (B, N, P) of each position.

    A latent vector z is quantised by one of V codes in each of G groups, q = W_q [e_1; …; e_G] + b_q. In training, the
    codes are drawn by Gumbel noise of temperature τ, and the gradient is that of the soft choice (straight-through,
    Jang et al. 2017): τ falls from the first to the last of ``gumbel`` by the factor ``decay`` a batch. In evaluation
    they are the most probable ones.
    """

    updates: Tensor

    def __init__(self, part: ContrastiveHead, width: int, table: object):
        super().__init__()
        if part.latent_width is None:
            raise UserError("model.head.latent_width is unknown: set it, or build the model together with its data")
        self.part, self.num_outputs = part, part.features
        self.map = Linear(width, part.features)
        self.scores = Linear(part.latent_width, part.groups * part.codes)
        self.codes = nn.Parameter(torch.empty(part.groups, part.codes, part.code_width // part.groups))
        self.code_map = Linear(part.code_width, part.features)
        self.register_buffer("updates", torch.zeros(()))
        self.initialise(1.0)

    def layouts(self) -> Layouts:
        return {"codes": WHOLE, "updates": WHOLE}

    def initialise(self, std: float) -> None:
        """Draw the codes uniformly from 0 to 1, as in the published code, and the scores from N(0, 1)."""
        nn.init.uniform_(self.codes)
        nn.init.normal_(self.scores.weight)

    @property
    def gumbel_temperature(self) -> Tensor:
        """Temperature τ of the noise in the next training batch."""
        first, last = self.part.gumbel
        return (first * self.part.decay**self.updates).clamp(min=last)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.map(x)

    def quantised(self, latents: Tensor) -> ChosenCodes:
        """Choose the codes of latent vectors (…, C); in training at random, and τ falls."""
        logits = at_least_single(self.scores(latents)).unflatten(-1, (self.part.groups, self.part.codes))
        ids = logits.argmax(-1)
        choice = F.one_hot(ids, self.part.codes).to(logits.dtype)
        if self.training:
            temperature: Any = self.gumbel_temperature  # a tensor, so that no device is waited for
            choice = F.gumbel_softmax(logits, temperature, hard=True)
            ids = choice.argmax(-1)
            self.updates += 1
        joined = torch.einsum("...gv,gvd->...gd", choice.to(self.codes.dtype), self.codes).flatten(-2)
        return ChosenCodes(ids, self.code_map(joined), logits.softmax(-1))

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length, self.part.latent_width or 1, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of all positions of latent vectors ``targets`` (B, N, C), each told apart from all others of
        its row; no smoothing.
        """
        vectors = self.quantised(targets).vectors
        similar = F.cosine_similarity(at_least_single(outputs)[:, :, None], at_least_single(vectors)[:, None], dim=-1)
        truth = torch.arange(outputs.shape[1], device=outputs.device).expand(len(outputs), -1)
        return F.cross_entropy((similar / self.part.temperature).flatten(0, 1), truth.flatten(), reduction="sum")


def candidate_logits(outputs: Tensor, right: Tensor, wrong: Tensor, same: Tensor, temperature: float) -> Tensor:
    """Return cos(c, q) / κ (M, 1 + K) of the right vectors (M, P), then of the wrong ones (M, K, P).

    A wrong vector with the codes of the right one gets -∞; same (M, K): True there.
    """
    outputs, right, wrong = (at_least_single(each) for each in (outputs, right, wrong))
    candidates = torch.cat((right[:, None], wrong), 1)
    logits = F.cosine_similarity(outputs[:, None], candidates, dim=-1) / temperature
    return torch.cat((logits[:, :1], logits[:, 1:].masked_fill(same, -torch.inf)), 1)


def code_perplexity(chances: Tensor) -> Tensor:
    """Return Σ_g exp(H(p̄_g)), at most G V, of mean probabilities p̄ (G, V) over vectors: chances (M, G, V)."""
    mean = chances.mean(0)
    return (-(mean * (mean + 1e-7).log()).sum(-1)).exp().sum()
