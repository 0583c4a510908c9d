"""Verification of proposals: the tokens that a row gains in one forward pass over its proposals.

    text ── proposals x₁ … xₖ ── one forward pass: p₀ … pₖ ── x₁ … xₐ accepted, one more token drawn ── text

pᵢ is the distribution from which plain sampling would draw after x₁ … xᵢ: constraint, filters and repetition penalty
included. A row without proposals has k = 0 and gains one token.

- A certain proposal (look-up, or a draft at temperature 0) is accepted where it is the token that plain decoding takes:
  the argmax, or the token drawn with the row's next random number. Texts are those of plain decoding with the same
  seed, token by token.
- A proposal x drawn from a draft's distribution q is accepted with probability min(1, p(x) / q(x)). After the first
  rejection a token is drawn from max(p - q, 0), normalised, so that tokens have the distribution p (Leviathan et al.
  2023; Chen et al. 2023).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
from torch import Tensor

from qkv.generation.filters import alike, checked, draw_by, probabilities, sampled
from qkv.generation.proposals import Proposal
from qkv.spec.generation import Generation


class Uniforms:
    """Random numbers of one row in [0, 1), in their order; those that are not used are seen again."""

    def __init__(self, seed: int):
        self._random, self._ahead = random.Random(seed), list[float]()

    def ahead(self, count: int) -> list[float]:
        """The next ``count`` numbers."""
        self._ahead += [self._random.random() for _ in range(count - len(self._ahead))]
        return self._ahead[:count]

    def use(self, count: int) -> None:
        """Go on by ``count`` numbers."""
        del self._ahead[:count]

    def next(self) -> float:
        """The next number, which is used."""
        (number,) = self.ahead(1)
        self.use(1)
        return number


@dataclass
class RowSpan:
    """Lines of logits (M, V) that belong to one row: after its text, and after each of its proposals.

    text: tokens before the proposals. first: its first line. begin: number of tokens of its prompt.
    """

    text: Sequence[int]
    proposal: Proposal
    generation: Generation
    uniforms: Uniforms
    first: int = 0
    begin: int = 0

    @property
    def lines(self) -> range:
        """Its lines, one more than proposals."""
        return range(self.first, self.first + len(self.proposal.tokens) + 1)

    @property
    def prefixes(self) -> list[list[int]]:
        """Text before the token of each line."""
        tokens = self.proposal.tokens
        return [[*self.text, *tokens[:count]] for count in range(len(tokens) + 1)]


def laid(spans: Sequence[RowSpan]) -> Sequence[RowSpan]:
    """The spans, with their lines one after the other."""
    sizes = [len(span.lines) for span in spans]
    for span, end, size in zip(spans, accumulate(sizes), sizes, strict=True):
        span.first = end - size
    return spans


def verified(spans: Sequence[RowSpan], logits: Tensor, seen: Tensor | None) -> list[list[int]]:
    """New tokens of each row: its accepted proposals and one more token.

    logits (M, V): lines of the spans. seen (M, L): tokens before each line, for the repetition penalty.
    """
    found: list[list[int]] = [[] for _ in spans]
    groups = alike(span.generation for span in spans)
    for generation, places in groups:
        for drawn in (False, True):
            some = [place for place in places if (spans[place].proposal.chances is not None) == drawn]
            if not some:
                continue
            own, lines = [spans[place] for place in some], [line for place in some for line in spans[place].lines]
            whole = len(lines) == len(logits)
            part, text = logits if whole else logits[lines], seen if seen is None or whole else seen[lines]
            new = _weighed(own, probabilities(part, generation, text)) if drawn else _equal(own, part, generation, text)
            for place, tokens in zip(some, new, strict=True):
                found[place] = tokens
    return found


def _equal(spans: Sequence[RowSpan], logits: Tensor, generation: Generation, seen: Tensor | None) -> list[list[int]]:
    """New tokens of rows of equal settings whose proposals are certain; logits: lines of these rows only."""
    drawing = generation.temperature > 0.0
    uniforms = [number for span in spans for number in span.uniforms.ahead(len(span.lines))] if drawing else []
    tokens, found, first = sampled(logits, generation, seen, uniforms), list[list[int]](), 0
    for span in spans:
        own, proposed = tokens[first : first + len(span.lines)], span.proposal.tokens
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, proposed, strict=False)))
        found.append(own[: right + 1])
        first += len(own)
        if drawing:
            span.uniforms.use(right + 1)
    return found


def _weighed(spans: Sequence[RowSpan], p: Tensor) -> list[list[int]]:
    """New tokens of rows of equal settings whose proposals a draft drew; p: distributions of plain sampling."""
    found, weights, first = list[list[int]](), list[Tensor](), 0
    for span in spans:
        tokens, chances = span.proposal
        assert chances is not None
        at = torch.tensor(tokens, device=p.device)[:, None]
        ratios = (p[first : first + len(tokens)].gather(-1, at) / chances.gather(-1, at))[:, 0].tolist()
        kept = sum(1 for _ in takewhile(lambda ratio, own=span.uniforms: own.next() < ratio, ratios))
        rest = p[first + kept]
        weights.append(rest if kept == len(tokens) else remainder(rest, chances[kept]))
        found.append(tokens[:kept])
        first += len(tokens) + 1
    uniforms = torch.tensor([span.uniforms.next() for span in spans], dtype=torch.float64, device=p.device)
    last = checked(draw_by(torch.stack(weights), uniforms).tolist(), p.shape[-1])
    return [[*tokens, token] for tokens, token in zip(found, last, strict=True)]


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Weights max(p - q, 0) (V) of the token that replaces a rejected one; p where rounding leaves none."""
    rest = (p - q).clamp(min=0)
    return torch.where(rest.sum() > 0, rest, p)
