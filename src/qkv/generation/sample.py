"""Batched sampling from prompts of different lengths, one forward pass per token."""

from __future__ import annotations

import random
import secrets
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.filters import filtered, pick
from qkv.generation.reading import read
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation
from qkv.state.tree import rows


class Sampling:
    """Batched sampler that appends one token per row and step.

    The right-padded prompts are encoded in one pass; after that each row has its own position and there is no padding.
    Row i has its own random generator, seeded with ``generation.seed + i``, so its text does not depend on the other
    rows (up to rounding of matrix products, which may vary with the batch size). Dropout is active if the model is in
    training mode; see ``evaluating``.
    """

    def __init__(self, model: Transformer, prompts: Sequence[Sequence[int]], generation: Generation, capacity: int | None = None):
        """``capacity``: fixed number of positions of the state; None grows by doubling.

        Raises ``UserError`` for invalid prompts, a model that cannot generate, and num_beams > 1.
        """
        if generation.num_beams > 1:
            raise UserError(f"num_beams is {generation.num_beams}, but sampling has no beams; call qkv.generation.beam.beam_search")
        context.check(model, prompts, generation)
        self.model, self.generation = model, generation
        self.texts = [list(prompt) for prompt in prompts]
        """Tokens of each row, prompt included."""
        self._prompts = [len(prompt) for prompt in prompts]
        self.running = list(range(len(prompts)))
        """Indices of unfinished rows."""
        self._capacity = capacity
        self._limit = model.limit
        self._device = model.device
        first = secrets.randbits(32) if generation.seed is None else generation.seed
        self._random = [random.Random(first + row) for row in self.running]
        self._state: object | None = None
        self._start: dict[int, int] = {}
        self._latest = torch.zeros(len(prompts), dtype=torch.long, device=self._device)
        self._history: Tensor | None = None

    @torch.inference_mode()
    def step(self) -> list[tuple[int, int]]:
        """Sample one token for each running row, append it to its text, and return (row, token) pairs."""
        if not self.running:
            return []
        self._latest = self._drawn(self._logits())
        if self._history is not None:
            self._history = torch.cat((self._history, self._latest[:, None]), 1)
        drawn = list(zip(self.running, self._latest.tolist(), strict=True))
        for row, token in drawn:
            self.texts[row].append(token)
        return drawn

    @torch.inference_mode()
    def drop(self, finished: Collection[int]) -> None:
        """End these rows and free their state."""
        kept = [place for place, row in enumerate(self.running) if row not in finished]
        if len(kept) == len(self.running):
            return
        index = torch.tensor(kept, dtype=torch.long, device=self._device)
        self.running = [self.running[place] for place in kept]
        self._state = None if self._state is None else rows(self._state, index)
        self._latest = self._latest[index]
        self._history = None if self._history is None else self._history[index]

    def _logits(self) -> Tensor:
        """Next-token logits (B, V) of the running rows."""
        if self._state is None or self._slides():
            return self._read()
        logits, self._state = self.model(self._latest[:, None], self._state)
        return logits[:, -1]

    def _slides(self) -> bool:
        """True if the context of some row is full and must slide."""
        limit = self._limit
        return limit is not None and any(context.first_seen(len(self.texts[row]), limit) != self._start[row] for row in self.running)

    def _read(self) -> Tensor:
        """Encode the visible part of each text from position 0 into a new state; return the logits."""
        self._start = {row: context.first_seen(len(self.texts[row]), self._limit) for row in self.running}
        seen = [self.texts[row][self._start[row] :] for row in self.running]
        prompts = [max(0, self._prompts[row] - self._start[row]) for row in self.running]
        logits, self._state = read(self.model, seen, self._capacity, prompts=prompts)
        if self.generation.repetition_penalty != 1.0:
            self._history = _repeated([self.texts[row] for row in self.running], self._device)
        return logits

    def _drawn(self, logits: Tensor) -> Tensor:
        """Select one token per row, (B,)."""
        logits = at_least_single(logits)
        if self.generation.temperature == 0.0:
            best, tokens = filtered(logits, self.generation, self._history).max(-1)
            sound = best.isfinite()
        else:
            uniforms = torch.tensor([self._random[row].random() for row in self.running], dtype=torch.float64, device=self._device)
            tokens = pick(logits, self.generation, self._history, uniforms)
            sound = tokens < logits.shape[-1]
        if not bool(sound.all()):
            raise UserError(
                "the model's logits are not finite, so no token can be sampled; its weights are damaged or its training diverged"
            )
        return tokens


def _repeated(texts: list[list[int]], device: torch.device) -> Tensor:
    """Ids (B, N), left-padded with the row's first token, so that padding adds no new token to the penalty."""
    longest = max(map(len, texts))
    return torch.tensor([text[:1] * (longest - len(text)) + text for text in texts], device=device)


def stream(
    model: Transformer, prompts: Sequence[Sequence[int]], generation: Generation, capacity: int | None = None
) -> Iterator[list[int]]:
    """Yield the new token of each prompt, one list per step. See ``Sampling``; for stop strings see ``stream_text``."""
    if generation.stop:
        raise UserError("stop: stop strings need a tokenizer, and only token ids are given; generate with a tokenizer or without 'stop'")
    sampling = Sampling(model, prompts, generation, capacity)
    with evaluating(model):
        for _ in range(generation.max_new_tokens):
            yield [token for _, token in sampling.step()]


def generate(
    model: Transformer, prompts: Sequence[Sequence[int]], generation: Generation | None = None, capacity: int | None = None
) -> list[list[int]]:
    """Generate the new tokens of each prompt; see ``Sampling``. Raises ``UserError`` for invalid prompts or options."""
    steps = list(stream(model, prompts, generation or Generation(), capacity))
    return [list(row) for row in zip(*steps, strict=True)] if steps else [[] for _ in prompts]
