"""Batched sampling from prompts of different lengths: a policy of the engine."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.filters import checked, filtered, pick
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation

if TYPE_CHECKING:
    from qkv.generation.constrain import Constraint
    from qkv.generation.speculate import Speculator


class Sampling:
    """Batched sampler that appends one token per row and step; a row ends after ``generation.max_new_tokens``.

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
        if generation.num_beams > 1:
            raise UserError(
                f"num_beams is {generation.num_beams}, but sampling has no beams; call qkv.generation.beam.beam_search"
            )
        self.model, self.generation, self._allowed = model, generation, drawn
        self.texts: list[list[int]] = []
        """Tokens of each row, prompt included."""
        self._engine = Engine(model, self._chosen, capacity)
        self._ends: list[int] = []
        self._first = secrets.randbits(32) if generation.seed is None else generation.seed
        self._random: list[random.Random] = []
        self._drawn: list[tuple[int, int]] = []
        self._history: tuple[list[int], Tensor] | None = None
        self.admit(prompts)

    @property
    def running(self) -> list[int]:
        """Indices of the rows that have not ended."""
        return [row.key for row in self._engine.rows]

    def admit(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Add prompts, also while other rows decode; return their row indices. The next step reads them."""
        context.check(self.model, prompts, self.generation)
        added = list(range(len(self.texts), len(self.texts) + len(prompts)))
        self.texts += map(list, prompts)
        self._ends += [len(prompt) + self.generation.max_new_tokens for prompt in prompts]
        self._random += [random.Random(self._first + row) for row in added]
        if self.generation.max_new_tokens:
            self._engine.admit(prompts, added)
        return added

    def step(self) -> list[tuple[int, int]]:
        """Sample one token for each running row, append it to its text, and return (row, token) pairs."""
        self._drawn = []
        self._engine.step()
        return self._drawn

    def drop(self, finished: Collection[int]) -> None:
        """End the rows with indices ``finished`` and free their state."""
        self._engine.evict([place for place, row in enumerate(self._engine.rows) if row.key in finished])

    def _chosen(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        """Successors of all rows, as a policy of the engine: each row with one sampled token."""
        tokens = self._tokens(rows, at_least_single(reading.logits()[:, : self._allowed]))
        self._drawn = list(zip((row.key for row in rows), tokens, strict=True))
        for key, token in self._drawn:
            self.texts[key].append(token)
        going = (place for place, (key, _) in enumerate(self._drawn) if len(self.texts[key]) < self._ends[key])
        return [Next(place, tokens[place : place + 1]) for place in going]

    def _tokens(self, rows: Sequence[DecodedRow], logits: Tensor) -> list[int]:
        """Sample one token id per row; the only values that a step reads from the device."""
        history = self._seen(rows, logits.device) if self.generation.repetition_penalty != 1.0 else None
        if self.generation.temperature == 0.0:
            best, tokens = filtered(logits, self.generation, history).max(-1)
            sound = all(map(math.isfinite, best.tolist()))
        else:
            uniforms = torch.tensor(
                [self._random[row.key].random() for row in rows], dtype=torch.float64, device=logits.device
            )
            tokens = pick(logits, self.generation, history, uniforms)
            sound = True
        return checked(tokens.tolist(), logits.shape[-1], sound)

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
            while done and all(len(text) > place for text, place in zip(sampling.texts, done, strict=True)):
                yield [text[place] for text, place in zip(sampling.texts, done, strict=True)]
                done = [place + 1 for place in done]


def sampler(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    capacity: int | None = None,
    way: Speculator | Constraint | None = None,
) -> Sampling:
    """``Sampling``, or its form that decodes speculatively or within a constraint."""
    return (
        Sampling(model, prompts, generation, capacity)
        if way is None
        else way.sampling(model, prompts, generation, capacity)
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
