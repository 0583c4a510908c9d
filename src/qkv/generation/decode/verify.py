"""Verification of proposed tokens by one forward pass over them, which also yields one more token.

    text ── proposals x₁ … xₖ ── one forward pass: p₀ … pₖ ── x₁ … xₐ accepted, one more token drawn ── text

pᵢ is the distribution from which plain sampling would draw after x₁ … xᵢ: constraint, adjustments and filters included.
A row without proposals has k = 0 and gains one token.

- A deterministic proposal (look-up, or a draft at temperature 0) is accepted if it equals the token that plain decoding
  yields: the argmax, or the token sampled with the row's next random number. The text equals that of plain decoding
  with the same seed, token by token.
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

from qkv.generation.decode.proposals import Proposal
from qkv.generation.logits.filters import alike, checked, draw_by, probabilities, sampled
from qkv.spec.generation import Generation


class Uniforms:
    """Stream of random numbers of one row in [0, 1); numbers that are read ahead stay in it until they are used."""

    def __init__(self, seed: int):
        self._random, self._ahead = random.Random(seed), list[float]()

    def ahead(self, count: int) -> list[float]:
        """Return the next ``count`` numbers without consuming them."""
        self._ahead += [self._random.random() for _ in range(count - len(self._ahead))]
        return self._ahead[:count]

    def use(self, count: int) -> None:
        """Consume the next ``count`` numbers."""
        del self._ahead[:count]

    def next(self) -> float:
        """Return and consume the next number."""
        (number,) = self.ahead(1)
        self.use(1)
        return number


@dataclass
class RowSpan:
    """Part of the logits (M, V) that belongs to one text: the line after it, and the line after each proposed token.

    text: tokens before the proposal. first: index of the first of these lines. begin: number of prompt tokens at the
    start of ``text``.
    """

    text: Sequence[int]
    proposal: Proposal
    generation: Generation
    uniforms: Uniforms
    first: int = 0
    begin: int = 0

    @property
    def lines(self) -> range:
        """Indices of the lines: one more than proposed tokens."""
        return range(self.first, self.first + len(self.proposal.tokens) + 1)

    @property
    def written(self) -> list[list[int]]:
        """For each line, the tokens before it, without the prompt."""
        return [text[self.begin :] for text in self.prefixes]

    @property
    def prefixes(self) -> list[list[int]]:
        """For each line, all tokens before it: the text and the proposed tokens so far."""
        tokens = self.proposal.tokens
        return [[*self.text, *tokens[:count]] for count in range(len(tokens) + 1)]


def laid(spans: Sequence[RowSpan]) -> Sequence[RowSpan]:
    """Lay out the spans one after another: set ``first`` of each of them; return ``spans``."""
    sizes = [len(span.lines) for span in spans]
    for span, end, size in zip(spans, accumulate(sizes), sizes, strict=True):
        span.first = end - size
    return spans


def verified(spans: Sequence[RowSpan], logits: Tensor, seen: Tensor | None) -> list[list[int]]:
    """Return the new tokens of each row: its accepted proposed tokens and one more token.

    logits (M, V): lines of the spans. seen (M, L): tokens before each line, for the repetition penalty.
    """
    rows: list[list[int]] = [[] for _ in spans]
    groups = alike(span.generation for span in spans)
    for generation, places in groups:
        for drawn in (False, True):
            some = [place for place in places if (spans[place].proposal.chances is not None) == drawn]
            if not some:
                continue
            group, lines = [spans[place] for place in some], [line for place in some for line in spans[place].lines]
            whole = len(lines) == len(logits)
            part, text = logits if whole else logits[lines], seen if seen is None or whole else seen[lines]
            new = (
                _weighed(group, probabilities(part, generation, text))
                if drawn
                else _equal(group, part, generation, text)
            )
            for place, tokens in zip(some, new, strict=True):
                rows[place] = tokens
    return rows


def _equal(spans: Sequence[RowSpan], logits: Tensor, generation: Generation, seen: Tensor | None) -> list[list[int]]:
    """Return the new tokens of rows with equal settings and deterministic proposals; logits: lines of these rows."""
    drawing = generation.temperature > 0.0
    uniforms = [number for span in spans for number in span.uniforms.ahead(len(span.lines))] if drawing else []
    tokens, rows, first = sampled(logits, generation, seen, uniforms), list[list[int]](), 0
    for span in spans:
        sampled_tokens, proposed = tokens[first : first + len(span.lines)], span.proposal.tokens
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sampled_tokens, proposed, strict=False)))
        rows.append(sampled_tokens[: right + 1])
        first += len(sampled_tokens)
        if drawing:
            span.uniforms.use(right + 1)
    return rows


def _weighed(spans: Sequence[RowSpan], p: Tensor) -> list[list[int]]:
    """Return the new tokens of rows with equal settings whose proposals a draft sampled; p: distributions of plain
    sampling, one per line.
    """
    rows, weights, first = list[list[int]](), list[Tensor](), 0
    for span in spans:
        tokens, chances = span.proposal
        assert chances is not None
        at = torch.tensor(tokens, device=p.device)[:, None]
        ratios = (p[first : first + len(tokens)].gather(-1, at) / chances.gather(-1, at))[:, 0].tolist()
        count = sum(1 for _ in takewhile(lambda ratio, row_uniforms=span.uniforms: row_uniforms.next() < ratio, ratios))
        rest = p[first + count]
        weights.append(rest if count == len(tokens) else remainder(rest, chances[count]))
        rows.append(tokens[:count])
        first += len(tokens) + 1
    uniforms = torch.tensor([span.uniforms.next() for span in spans], dtype=torch.float64, device=p.device)
    last = checked(draw_by(torch.stack(weights), uniforms).tolist(), p.shape[-1])
    return [[*tokens, token] for tokens, token in zip(rows, last, strict=True)]


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Return the weights max(p - q, 0) (V) of the token that replaces a rejected one; p if all weights round to 0."""
    rest = (p - q).clamp(min=0)
    return torch.where(rest.sum() > 0, rest, p)
