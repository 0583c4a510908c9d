"""Batched beam search with K beams per prompt and one forward pass per token.

For a continuation y of n tokens, end token included,

    log p(y) = Σ_i log p(y_i | prompt, y_1 … y_{i-1})        score(y) = log p(y) / n ** length_penalty

Each step extends the K beams of a prompt by every token and ranks the candidates by log p. Of the best 2 K candidates,
the finished ones among the first K become hypotheses, and the K hypotheses with the best scores are kept; the best K
unfinished ones are the next beams. With ``early_stopping`` a search ends as soon as it has K hypotheses. Without, it
ends once its best beam, scored at its current length, is no better than the worst hypothesis. That rule is a heuristic
for a positive length penalty, because a longer text may still overtake; transformers uses it too, and the results are
the same. After ``max_new_tokens`` steps every beam is a hypothesis.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.reading import read
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation
from qkv.state.tree import overwrite, rows

Ends = Callable[[int, list[int]], bool]
"""(row, its new tokens) -> True if the text is finished."""


class Hypothesis(NamedTuple):
    """Finished continuation: tokens (with the end token, if any), log p / length ** length_penalty, log p in nats."""

    tokens: list[int]
    score: float
    log_probability: float


class Beam(NamedTuple):
    """Unfinished continuation. ``parent``: slot (0 to K - 1) of the beam that it extends."""

    log_probability: float
    parent: int
    token: int


class Beams:
    """K beams and the best K hypotheses (best first) of one prompt. An empty slot has log p = -inf."""

    def __init__(self, generation: Generation):
        self.generation = generation
        self.texts: list[list[int]] = [[]]
        self.log_probabilities = [0.0]
        self.finished: list[Hypothesis] = []

    def advance(self, candidates: Iterable[Beam], ends: Callable[[list[int]], bool]) -> list[int]:
        """Select the next K beams from ``candidates`` (best first); return the parent slot of each."""
        width, going = self.generation.num_beams, []
        for rank, beam in enumerate(candidates):
            if beam.log_probability == -math.inf:
                break
            text = [*self.texts[beam.parent], beam.token]
            if not ends(text):
                going.append((beam, text))
            elif rank < width:
                self._finish(text, beam.log_probability)
        return self._settle(going[:width])

    def _finish(self, text: list[int], log_probability: float) -> None:
        score = log_probability / len(text) ** self.generation.length_penalty
        insort(self.finished, Hypothesis(text, score, log_probability), key=lambda h: -h.score)
        del self.finished[self.generation.num_beams :]

    def _settle(self, going: list[tuple[Beam, list[int]]]) -> list[int]:
        """Assign beams to slots. The best child keeps its parent's slot, so that only forks copy state."""
        width, alone = self.generation.num_beams, len(self.texts) == 1
        slots: list[tuple[Beam, list[int]] | None] = [None] * width
        late = []
        for pair in going:
            if slots[pair[0].parent] is None:
                slots[pair[0].parent] = pair
            else:
                late.append(pair)
        free = [slot for slot, pair in enumerate(slots) if pair is None]
        for slot, pair in zip(free, late, strict=False):
            slots[slot] = pair
        # An empty slot repeats its old text, so that all rows of the batch have the same length.
        parents = [0 if alone else slot for slot in range(width)]
        settled = [pair or (Beam(-math.inf, parents[slot], 0), [*self.texts[parents[slot]], 0]) for slot, pair in enumerate(slots)]
        self.texts = [text for _, text in settled]
        self.log_probabilities = [beam.log_probability for beam, _ in settled]
        return [beam.parent for beam, _ in settled]

    @property
    def done(self) -> bool:
        """True if no beam is left, or none is expected to improve the best K hypotheses."""
        best = max(self.log_probabilities)
        if best == -math.inf:
            return True
        if len(self.finished) < self.generation.num_beams:
            return False
        possible = best / len(self.texts[0]) ** self.generation.length_penalty
        return self.generation.early_stopping or possible <= self.finished[-1].score


class BeamSearch:
    """Batched beam search, advanced one token per step; finished prompts leave the batch.

    The prompts are encoded once and their state is forked. A beam keeps its row of the state as long as it has a child;
    rows of discarded beams are overwritten by a copy of the row that forks. Beams do not share storage, so a copy
    includes the keys and values of the prompt and of an encoder's memory. For states larger than the processor's cache
    these copies are most of the extra cost of a beam step over a sampling step.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        generation: Generation,
        end_id: int | None = None,
        capacity: int | None = None,
        memory: Any | None = None,
        ends: Ends | None = None,
    ):
        """Arguments as for ``beam_search``."""
        context.check(model, prompts, generation)
        _check(model, generation, end_id)
        self.model, self.generation = model, generation
        self.prompts = [list(prompt) for prompt in prompts]
        self.running = list(range(len(prompts)))
        """Indices of unfinished prompts."""
        self.beams = [Beams(generation) for _ in prompts]
        self._end_id, self._ends, self._capacity, self._memory = end_id, ends, capacity, memory
        self._state: Any = None
        self._steps = 0
        self._start: list[int] = []
        self._device = model.device
        self._latest = torch.zeros(0, dtype=torch.long, device=self._device)

    @torch.inference_mode()
    def step(self) -> None:
        """Extend every beam of the running prompts by one token."""
        if not self.running:
            return
        candidates = self._candidates(self._logits())
        parents = [self.beams[row].advance(found, self._ending(row)) for row, found in zip(self.running, candidates, strict=True)]
        self._follow(parents)
        self._steps += 1

    @property
    def _width(self) -> int:
        """Beams a prompt: 1 before the first step, num_beams after it."""
        return self.generation.num_beams if self._steps else 1

    def _ending(self, row: int) -> Callable[[list[int]], bool]:
        last = self._steps + 1 == self.generation.max_new_tokens
        return lambda text: last or text[-1] == self._end_id or (self._ends is not None and self._ends(row, text))

    def _logits(self) -> Tensor:
        """Next-token logits (R K, V) of the beams of the R running prompts."""
        start = [context.first_seen(len(self.prompts[row]) + self._steps, self.model.limit) for row in self.running]
        if self._state is None or start != self._start:
            return self._read(start)
        logits, self._state = self.model(self._latest[:, None], self._state)
        return logits[:, -1]

    def _read(self, start: list[int]) -> Tensor:
        """Encode the visible part of each text from position 0 into a new state; return the logits."""
        self._start = start
        texts = [self.prompts[row] + new for row in self.running for new in self.beams[row].texts]
        seen = [text[start[place // self._width] :] for place, text in enumerate(texts)]
        source = [row for row in self.running for _ in range(self._width)]
        memory = self._memory if self._memory is None or not self._steps else rows(self._memory, source)
        prompts = [max(0, len(self.prompts[row]) - start[place // self._width]) for place, row in enumerate(source)]
        logits, self._state = read(self.model, seen, self._capacity, memory, prompts)
        return logits

    def _candidates(self, logits: Tensor) -> list[list[Beam]]:
        """The best 2 K continuations of each running prompt, best first."""
        count, logits = len(self.running), at_least_single(logits)
        before = [self.beams[row].log_probabilities for row in self.running]
        # The best 2 K of all beams contain at most 2 K tokens of one beam.
        best, tokens = logits.topk(min(2 * self.generation.num_beams, logits.shape[-1]))
        found = (best - logits.logsumexp(-1, keepdim=True)).double().view(count, self._width, -1)
        found = (found + torch.tensor(before, dtype=torch.float64, device=self._device)[..., None]).flatten(1)
        found, place = found.topk(min(2 * self.generation.num_beams, found.shape[1]))
        columns = found, place // tokens.shape[1], tokens.view(count, -1).gather(1, place)
        if not bool(found[:, 0].isfinite().all()):
            raise UserError("the model's logits are not finite, so texts cannot be ranked; its weights are damaged")
        return [[Beam(*beam) for beam in zip(*row, strict=True)] for row in zip(*(c.tolist() for c in columns), strict=True)]

    def _follow(self, parents: list[list[int]]) -> None:
        """Reorder state and latest tokens by slot; drop finished prompts."""
        kept = [place for place, row in enumerate(self.running) if not self.beams[row].done]
        index = [place * self._width + parent for place in kept for parent in parents[place]]
        if len(kept) == len(self.running) and self._width == self.generation.num_beams:
            forks = [(to, source) for to, source in enumerate(index) if to != source]
            self._state = overwrite(self._state, [to for to, _ in forks], [source for _, source in forks])
        elif index:
            self._state = rows(self._state, index)
        self.running, self._start = [self.running[place] for place in kept], [self._start[place] for place in kept]
        latest = [text[-1] for row in self.running for text in self.beams[row].texts]
        self._latest = torch.tensor(latest, dtype=torch.long, device=self._device)


def beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    end_id: int | None = None,
    capacity: int | None = None,
    memory: Any | None = None,
    ends: Ends | None = None,
) -> list[list[Hypothesis]]:
    """Return the best ``num_return`` continuations of each prompt, best first (fewer if fewer exist). K = 1 is greedy decoding.

    end_id: the token that ends a text.   capacity: fixed number of positions of the state; None grows by doubling.
    memory: encoder output, one row per prompt.   ends(row, new tokens): additional stopping criterion.
    With bounded positions the context slides as in ``Sampling``. Raises ``UserError`` for invalid prompts, a model that
    cannot generate, and sampling options.
    """
    if not prompts:
        return []
    search = BeamSearch(model, prompts, generation, end_id, capacity, memory, ends)
    if not generation.max_new_tokens:
        return [[Hypothesis([], 0.0, 0.0)] for _ in prompts]
    with evaluating(model):
        while search.running:
            search.step()
    return [beams.finished[: generation.num_return] for beams in search.beams]


def _check(model: Transformer, generation: Generation, end_id: int | None) -> None:
    drawn = generation.drawing()
    if drawn:
        raise UserError(f"{drawn[0]}: beam search does not sample, but it is {getattr(generation, drawn[0])}; leave it out")
    if generation.stop:
        raise UserError("stop: stop strings need a tokenizer, and only token ids are given; search with a tokenizer or without 'stop'")
    known = model.vocab_size or 0
    if end_id is not None and not 0 <= end_id < known:
        raise UserError(f"the end token {end_id} is outside the vocabulary (0 to {known - 1})")
