"""Batched sampling from prompts of different lengths, each with settings of its own: a policy of the engine."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.filters import checked, filtered, pick
from qkv.layers.context import Memory
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.generation import DRAWING, Generation

if TYPE_CHECKING:
    from qkv.generation.constrain import Constraint
    from qkv.generation.speculate import Speculator


class TokenScore(NamedTuple):
    """Natural logarithm of a drawn token's probability, and (id, log probability) of the most probable tokens, best
    first. Both are those of the model, before temperature and filters.
    """

    log_probability: float
    alternatives: tuple[tuple[int, float], ...]


class Drawn(NamedTuple):
    """Token that a step has sampled for a row; ``score``: None unless the row asks for it."""

    row: int
    token: int
    score: TokenScore | None = None


@dataclass
class _Row:
    """Settings of a row. most: number of tokens at its end. alternatives: see ``Sampling.admit``."""

    generation: Generation
    random: random.Random
    most: int
    alternatives: int | None


class Sampling:
    """Batched sampler that appends one token per row and step; a row ends after its ``max_new_tokens``.

    Prompts of different lengths are read in one pass; after that each row has its own position and there is no padding.
    Row i has its own random generator, seeded with ``generation.seed + i``, so its text does not depend on the other
    rows (up to rounding of matrix products, which may vary with the batch size). Dropout is active if the model is in
    training mode; see ``evaluating``.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        generation: Generation,
        capacity: int | None = None,
        drawn: int | None = None,
    ):
        """Start after ``prompts``. ``capacity``: fixed number of positions of the state; None grows by doubling.

        ``drawn``: only ids below it are sampled; None for all.

        Raises ``UserError`` for invalid prompts, a model that cannot generate, and num_beams > 1.
        """
        self.model, self.generation, self._allowed = model, generation, drawn
        self.texts: dict[int, list[int]] = {}
        """Tokens of each row, prompt included."""
        self.engine = Engine(model, self._chosen, capacity)
        self._rows: dict[int, _Row] = {}
        self._first = _seed(generation)
        self._admitted = 0
        self._drawn: list[Drawn] = []
        self._history: tuple[list[int], Tensor] | None = None
        self.admit(prompts)

    @property
    def running(self) -> list[int]:
        """Indices of the rows that have not ended."""
        return [row.key for row in self.engine.rows]

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        generation: Generation | None = None,
        memory: Memory | None = None,
        alternatives: int | None = None,
    ) -> list[int]:
        """Add prompts, also while other rows decode; return their row indices. The next step reads them.

        generation: settings of these rows, whose seeds begin with its own; None: those of the sampler, whose seeds go
        on. memory: encoder output, one row per prompt. alternatives: None, or the number of most probable tokens to
        return beside the score of each drawn token.
        """
        settings = generation or self.generation
        if settings.num_beams > 1:
            raise UserError(
                f"num_beams is {settings.num_beams}, but sampling has no beams; call qkv.generation.beam.beam_search"
            )
        context.check(self.model, prompts, settings)
        added = list(range(self._admitted, self._admitted + len(prompts)))
        self._admitted += len(prompts)
        first = self._first + added[0] if generation is None and added else _seed(settings)
        for i, (row, prompt) in enumerate(zip(added, prompts, strict=True)):
            self.texts[row] = list(prompt)
            most = len(prompt) + settings.max_new_tokens
            self._rows[row] = _Row(settings, random.Random(first + i), most, alternatives)
        if settings.max_new_tokens:
            self.engine.admit(prompts, added, memory)
        return added

    def step(self) -> list[Drawn]:
        """Sample one token for each running row, append it to its text, and return the tokens."""
        self._drawn = []
        self.engine.step()
        return self._drawn

    def drop(self, finished: Collection[int]) -> None:
        """End the rows with indices ``finished`` and free their state."""
        self.engine.evict([place for place, row in enumerate(self.engine.rows) if row.key in finished])

    def forget(self, row: int) -> None:
        """Remove the text and settings of a row that has ended."""
        del self.texts[row], self._rows[row]

    def _chosen(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        """Successors of all rows, as a policy of the engine: each row with one sampled token."""
        logits = at_least_single(reading.logits()[:, : self._allowed])
        tokens = self._tokens(rows, logits)
        scores = self._scores(rows, logits, tokens)
        self._drawn = [Drawn(row.key, tokens[i], scores.get(i)) for i, row in enumerate(rows)]
        for key, token, _ in self._drawn:
            self.texts[key].append(token)
        going = (place for place, drawn in enumerate(self._drawn) if not self.is_full(drawn.row))
        return [Next(place, tokens[place : place + 1]) for place in going]

    def is_full(self, row: int) -> bool:
        """True if the text of a row has reached its maximum length."""
        return len(self.texts[row]) >= self._rows[row].most

    def _tokens(self, rows: Sequence[DecodedRow], logits: Tensor) -> list[int]:
        """Sample one token id per row, with one pass for all rows of equal settings."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(_filters(self._rows[row.key].generation), []).append(place)
        if len(groups) == 1:
            return self._sampled(rows, logits)
        found = [0] * len(rows)
        for places in groups.values():
            sampled = self._sampled([rows[place] for place in places], logits[places])
            for place, token in zip(places, sampled, strict=True):
                found[place] = token
        return found

    def _sampled(self, rows: Sequence[DecodedRow], logits: Tensor) -> list[int]:
        """Sample one token id per row of equal settings; the only values that a step reads from the device."""
        generation = self._rows[rows[0].key].generation
        history = self._seen(rows, logits.device) if generation.repetition_penalty != 1.0 else None
        if generation.temperature == 0.0:
            best, tokens = filtered(logits, generation, history).max(-1)
            sound = all(map(math.isfinite, best.tolist()))
        else:
            uniforms = torch.tensor(
                [self._rows[row.key].random.random() for row in rows], dtype=torch.float64, device=logits.device
            )
            tokens = pick(logits, generation, history, uniforms)
            sound = True
        return checked(tokens.tolist(), logits.shape[-1], sound)

    def _scores(self, rows: Sequence[DecodedRow], logits: Tensor, tokens: Sequence[int]) -> dict[int, TokenScore]:
        """Scores of the drawn tokens, by place in the batch, for the rows that ask for them."""
        asked = {place: self._rows[row.key].alternatives for place, row in enumerate(rows)}
        found = {}
        for place, count in asked.items():
            if count is None:
                continue
            chances = logits[place].log_softmax(-1)
            best, ids = chances.topk(min(count, len(chances)))
            alternatives = tuple(zip(ids.tolist(), best.tolist(), strict=True))
            found[place] = TokenScore(float(chances[tokens[place]]), alternatives)
        return found

    def _seen(self, rows: Sequence[DecodedRow], device: torch.device) -> Tensor:
        """Tokens of each row in any order (B, N), for the repetition penalty.

        Made of those of the last step and the latest token; of all tokens for a new batch.
        """
        keys = [row.key for row in rows]
        if self._history is not None and self._history[0] == keys:
            latest = torch.tensor([row.tokens[-1:] for row in rows], device=device)
            seen = torch.cat((self._history[1], latest), 1)
        else:
            # Padded with each row's first token, so that padding adds no new token to the penalty.
            longest = max(len(row.tokens) for row in rows)
            texts = [row.tokens[:1] * (longest - len(row.tokens)) + row.tokens for row in rows]
            seen = torch.tensor(texts, device=device)
        self._history = keys, seen
        return seen


def _seed(generation: Generation) -> int:
    return secrets.randbits(32) if generation.seed is None else generation.seed


def _filters(generation: Generation) -> tuple[object, ...]:
    """Settings by which the sampling of rows differs."""
    return tuple(getattr(generation, name) for name in DRAWING)


def stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    capacity: int | None = None,
    speculation: Speculator | None = None,
) -> Iterator[list[int]]:
    """Yield the new token of each prompt, one list per position. See ``Sampling``; for stop strings ``stream_text``.

    ``speculation``: decode speculatively, see ``qkv.generation.speculate``.
    """
    if generation.stop:
        raise UserError(
            "stop: stop strings need a tokenizer, and only token ids are given; "
            "generate with a tokenizer or without 'stop'"
        )
    sampling = sampler(model, prompts, generation, capacity, speculation)
    done = [len(prompt) for prompt in prompts]
    with evaluating(model):
        while sampling.running:
            sampling.step()
            while done and all(len(text) > place for text, place in zip(sampling.texts.values(), done, strict=True)):
                yield [text[place] for text, place in zip(sampling.texts.values(), done, strict=True)]
                done = [place + 1 for place in done]


def sampler(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    capacity: int | None = None,
    method: Speculator | Constraint | None = None,
) -> Sampling:
    """``Sampling``, or its form that decodes speculatively or within a constraint."""
    return (
        Sampling(model, prompts, generation, capacity)
        if method is None
        else method.sampling(model, prompts, generation, capacity)
    )


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation | None = None,
    capacity: int | None = None,
    speculation: Speculator | None = None,
) -> list[list[int]]:
    """Generate the new tokens of each prompt; see ``Sampling``. Raises ``UserError`` for invalid prompts or options.

    ``speculation``: decode speculatively, see ``qkv.generation.speculate``.
    """
    steps = list(stream(model, prompts, generation or Generation(), capacity, speculation))
    return [list(row) for row in zip(*steps, strict=True)] if steps else [[] for _ in prompts]
