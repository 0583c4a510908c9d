"""Batched beam search with K beams per prompt and one forward pass per token: a policy of the engine.

For a continuation y of n tokens, end token included,

    log p(y) = Σ_i log p(y_i | prompt, y_1 … y_{i-1})        score(y) = log p(y) / n ** length_penalty

Each step extends the K beams of a prompt by every token and ranks the candidates by log p. Of the best 2 K candidates,
the finished candidates among the first K become hypotheses, and the K hypotheses with the best scores are kept. The
best K unfinished candidates are the next beams. With ``early_stopping`` a search ends as soon as it has K hypotheses.
Without it, the search ends once its best beam, scored at its current length, is no better than the worst hypothesis.
For a positive length penalty this rule is a heuristic, because a longer text may still get a better score; transformers
uses the same rule, and the results are the same. After ``max_new_tokens`` steps every beam is a hypothesis.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation import context
from qkv.generation.engine import DecodedRow, Engine, Next, Reading
from qkv.generation.logits.forbid import LogitLine, forbid
from qkv.layers.context import Memory
from qkv.layers.signal import Signal
from qkv.models.evaluating import evaluating
from qkv.models.fast.frozen_weights import unchanged
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

Ends = Callable[[int, list[int]], bool]
"""(row, its new tokens) -> True if the text is finished."""


class Hypothesis(NamedTuple):
    """Finished continuation of a prompt.

    tokens: ids, with the end token if it has one.   score: log p / length ** length_penalty.   log_probability: log p
    in nats.
    """

    tokens: list[int]
    score: float
    log_probability: float


class Beam(NamedTuple):
    """Unfinished continuation of a prompt.

    log_probability: in nats.   parent: slot (0 to K - 1) of the beam that it extends.   token: id by which it extends
    it.
    """

    log_probability: float
    parent: int
    token: int


class Beams:
    """State of the search for one prompt: K unfinished beams in slots, and the best K finished hypotheses, best first.

    A slot without a beam has log p = -inf.
    """

    def __init__(self, generation: Generation, forced: int = 0):
        """Begin with an empty continuation. ``forced``: number of tokens before it that count in the lengths of
        scores, such as the language token that follows the start token of a translation.
        """
        self.generation, self.forced = generation, forced
        self.texts: list[list[int]] = [[]]
        self.log_probabilities = [0.0]
        self.finished: list[Hypothesis] = []

    def advance(self, candidates: Iterable[Beam], ends: Callable[[list[int]], bool]) -> list[int]:
        """Select the next K beams from ``candidates`` (best first), store finished candidates, and return the parent
        slot of each of the next beams.

        ``ends``: function (tokens of a continuation) -> True if the text ends there.
        """
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
        score = log_probability / (len(text) + self.forced) ** self.generation.length_penalty
        insort(self.finished, Hypothesis(text, score, log_probability), key=lambda h: -h.score)
        del self.finished[self.generation.num_beams :]

    def _settle(self, going: list[tuple[Beam, list[int]]]) -> list[int]:
        """Assign beams to slots; return the parent slot of each.

        The best child keeps its parent's slot, so that only forks copy state.
        """
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
        settled = [
            pair or (Beam(-math.inf, parents[slot], 0), [*self.texts[parents[slot]], 0])
            for slot, pair in enumerate(slots)
        ]
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
        possible = best / (len(self.texts[0]) + self.forced) ** self.generation.length_penalty
        return self.generation.early_stopping or possible <= self.finished[-1].score


class BeamSearch:
    """Batched beam search, advanced one token per step; finished prompts leave the batch.

    The prompts are read once and their state is forked. A beam keeps its row of the state as long as it has a child;
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
        memory: Memory | None = None,
        ends: Ends | None = None,
        drawn: int | None = None,
        inputs: Sequence[Mapping[str, Signal]] | None = None,
    ):
        """Check the arguments, which are those of ``beam_search``, and admit the prompts."""
        context.check(model, prompts, generation, inputs)
        _check(model, generation, end_id)
        self.generation = generation
        encodes = model.encoder is not None  # then the prompt is the beginning of the answer
        self.beams = [Beams(generation, max(0, len(prompt) - 1) if encodes else 0) for prompt in prompts]
        self._end_ids, self._ends, self._drawn = {end_id, *generation.stop_token_ids} - {None}, ends, drawn
        self._prompts = [[token for token in prompt if token >= 0] for prompt in prompts]
        self._engine = Engine(model, self._chosen, capacity)
        self._engine.admit(prompts, range(len(prompts)), memory, inputs)

    @property
    def running(self) -> list[int]:
        """Indices of the prompts whose search has not ended."""
        return list(dict.fromkeys(row.key for row in self._engine.rows))

    def step(self) -> None:
        """Run one forward pass and extend every beam of the unfinished prompts by one token."""
        self._engine.step()

    def _chosen(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        """Select the next K beams of each prompt, none if its search has ended; return them as successors (engine
        policy).

        The beams of a prompt are adjacent rows.
        """
        prompts = self.running
        width = len(rows) // len(prompts)
        candidate_lists, successors = self._candidates(prompts, at_least_single(reading.logits())), list[Next]()
        for block, (prompt, candidates) in enumerate(zip(prompts, candidate_lists, strict=True)):
            beams = self.beams[prompt]
            parents = beams.advance(candidates, self._ending(prompt))
            if not beams.done:
                successors += [
                    Next(block * width + parent, text[-1:]) for parent, text in zip(parents, beams.texts, strict=True)
                ]
        return successors

    def _ending(self, prompt: int) -> Callable[[list[int]], bool]:
        """Return a function (tokens of a continuation) -> True if it is finished: it has its maximum length, ends with
        an end token, or ``ends`` is true.
        """
        most, least, ends = self.generation.max_new_tokens, self.generation.min_tokens, self._ends

        def is_finished(text: list[int]) -> bool:
            return len(text) == most or (
                len(text) >= least and (text[-1] in self._end_ids or (ends is not None and ends(prompt, text)))
            )

        return is_finished

    def _drawable(self, prompts: Sequence[int], logits: Tensor) -> Tensor:
        """Restrict logits to the ids that may be candidates, with -inf for the tokens that the settings forbid and, in
        a text of fewer than ``min_tokens`` tokens, for end tokens.
        """
        logits = logits[:, : self._drawn]
        if len(self.beams[prompts[0]].texts[0]) < self.generation.min_tokens:
            logits = logits.clone()
            logits[:, [index for index in self._end_ids if index < logits.shape[1]]] = -math.inf
        if not self.generation.forbids:
            return logits
        pairs = [(self._prompts[prompt], text) for prompt in prompts for text in self.beams[prompt].texts]
        return forbid(logits, [LogitLine([*before, *text], len(before), self.generation) for before, text in pairs])

    def _candidates(self, prompts: Sequence[int], logits: Tensor) -> list[list[Beam]]:
        """Return the best 2 K continuations of each prompt by log probability, best first, and K more for each end
        token after the first. logits (beams of all prompts, V).
        """
        count = len(prompts)
        before = [self.beams[prompt].log_probabilities for prompt in prompts]
        most = max(2, 1 + len(self._end_ids)) * self.generation.num_beams
        # The best ``most`` candidates of a prompt include at most ``most`` tokens of one beam.
        drawable = self._drawable(prompts, logits)
        best, tokens = drawable.topk(min(most, drawable.shape[-1]))
        scores = (best - logits.logsumexp(-1, keepdim=True)).double().view(count, len(logits) // count, -1)
        scores = (scores + torch.tensor(before, dtype=torch.float64, device=logits.device)[..., None]).flatten(1)
        scores, place = scores.topk(min(most, scores.shape[1]))
        # One copy from the device for all three: float64 holds indices exactly.
        columns = torch.stack(
            (scores, (place // tokens.shape[1]).double(), tokens.view(count, -1).gather(1, place).double())
        )
        listed: list[list[list[float]]] = columns.tolist()
        if not all(math.isfinite(row[0]) for row in listed[0]):
            raise UserError("the model's logits are not finite, so texts cannot be ranked; its weights are damaged")
        return [
            [Beam(chance, int(parent), int(token)) for chance, parent, token in zip(*row, strict=True)]
            for row in zip(*listed, strict=True)
        ]


def beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    end_id: int | None = None,
    capacity: int | None = None,
    memory: Memory | None = None,
    ends: Ends | None = None,
    drawn: int | None = None,
    inputs: Sequence[Mapping[str, Signal]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the best ``num_return`` continuations of each prompt, best first (fewer if fewer exist).

    K = 1 is greedy decoding.

    end_id: a token that ends a text, besides those of ``generation``.   drawn: only ids below it are candidates.
    capacity: fixed number of positions of the state; None grows by doubling.
    memory: encoder output, one row per prompt.   inputs: values of the inputs other than text of each prompt, see
    ``Signal.inputs``. ends(row, new tokens): additional stopping criterion.
    With bounded positions the context slides as in ``Sampling``. Raises ``UserError`` for invalid prompts, a model that
    cannot generate, and sampling options.
    """
    if not prompts:
        return []
    search = BeamSearch(model, prompts, generation, end_id, capacity, memory, ends, drawn, inputs)
    if not generation.max_new_tokens:
        return [[Hypothesis([], 0.0, 0.0)] for _ in prompts]
    with unchanged(), evaluating(model):
        while search.running:
            search.step()
    return [beams.finished[: generation.num_return] for beams in search.beams]


def _check(model: Transformer, generation: Generation, end_id: int | None) -> None:
    drawn = generation.drawing()
    if drawn:
        raise UserError(f"{drawn[0]} is {getattr(generation, drawn[0])}, but beam search does not sample; leave it out")
    if generation.stop:
        raise UserError(
            "stop: stop strings need a tokenizer, and only token ids are given; "
            "search with a tokenizer or without 'stop'"
        )
    vocab_size = model.vocab_size or 0
    if end_id is not None and not 0 <= end_id < vocab_size:
        raise UserError(f"the end token {end_id} is outside the vocabulary (0 to {vocab_size - 1})")
