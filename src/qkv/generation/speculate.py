"""Speculative decoding: several tokens are proposed, and one forward pass verifies them; a policy of the engine.

    text ── proposals x₁ … xₖ ── one forward pass: p₀ … pₖ ── x₁ … xₐ accepted, one more token drawn ── text

Proposals are looked up in the text or drawn by a draft model with the same vocabulary (``qkv.generation.proposals``).
pᵢ is the distribution from which plain sampling would draw after x₁ … xᵢ: filters and repetition penalty included.

- A certain proposal (look-up, or a draft at temperature 0) is accepted where it is the token that plain decoding takes:
  the argmax, or the token drawn with the row's next random number. Texts are those of plain decoding with the same
  seed, token by token.
- A proposal x drawn from a draft's distribution q is accepted with probability min(1, p(x) / q(x)). After the first
  rejection a token is drawn from max(p - q, 0), normalised, so that tokens have the distribution p (Leviathan et al.
  2023; Chen et al. 2023). The texts of one seed are then those of plain decoding in distribution only, and which of
  them is generated may depend on measured times unless ``Speculation.adaptive`` is false.

What was read of rejected tokens is taken back: states that can drop positions are cut, others return to a copy, see
``Engine.cut``. ``qkv.generation.gain`` measures whether proposals pay and stops them where they do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.generation.engine import DecodedRow, Next, Reading
from qkv.generation.filters import checked, draw_by, filtered, pick, probabilities
from qkv.generation.gain import Gain
from qkv.generation.proposals import Draft, LookUp, Proposal, Proposer, history
from qkv.generation.sample import Drawn, Sampling
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation, Speculation
from qkv.tokenizers.tokenizer import Tokenizer


class Accepted(NamedTuple):
    """Counts over all rows.

    passes: verifications of a row's proposals.   proposed: tokens proposed.   accepted: of these.
    """

    passes: int = 0
    proposed: int = 0
    accepted: int = 0

    @property
    def mean_accepted(self) -> float:
        """Mean number of accepted tokens per pass; the pass gives one more token."""
        return self.accepted / self.passes if self.passes else 0.0


class Speculator:
    """Settings of speculative decoding, and the figures of the generation that used them last."""

    def __init__(
        self,
        speculation: Speculation | None = None,
        draft: Transformer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """``draft``: model that proposes, for the kind "draft" and no other.   ``clock``: time in seconds.

        Raises ``UserError`` for a draft without the kind "draft", and the reverse.
        """
        self.speculation = speculation or Speculation(kind="lookup" if draft is None else "draft")
        self.draft, self.clock = draft, clock
        self.counts, self.gain = Accepted(), Gain(self.speculation.adaptive)
        if (draft is None) != (self.speculation.kind == "lookup"):
            wrong = "needs a draft model" if draft is None else "reads no draft model"
            raise UserError(f"speculation of the kind {self.speculation.kind!r} {wrong}; change one of them")

    def sampling(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        generation: Generation,
        capacity: int | None = None,
    ) -> SpeculativeSampling:
        """Sampler that decodes speculatively; arguments as of ``Sampling``. Counts and gain begin anew.

        Raises ``UserError`` for a draft that cannot propose for ``model``.
        """
        refuse_beams(generation)
        if self.draft is not None:
            _check(model, self.draft)
        self.counts, self.gain = Accepted(), Gain(self.speculation.adaptive)
        return SpeculativeSampling(model, prompts, generation, capacity, self)

    def proposer(self, generation: Generation, seed: int) -> Proposer:
        """Source of proposals for one generation."""
        if self.draft is None:
            return LookUp(self.speculation.ngram)
        return Draft(self.draft, generation, seed)

    def summary(self) -> str:
        """One sentence with the counts and the gain."""
        passes, proposed, accepted = self.counts
        if not passes:
            return "speculation: no tokens were proposed"
        gain = self.gain.whole
        speed = "too short to measure the gain" if gain is None else f"{gain:.2f} times the speed of plain steps"
        return (
            f"speculation: {accepted} of {proposed} proposed tokens accepted, "
            f"{self.counts.mean_accepted:.2f} on average in {passes} passes; {speed}"
        )


def refuse_beams(generation: Generation) -> None:
    """Raise ``UserError`` for beam search with speculation."""
    if generation.num_beams > 1:
        raise UserError(
            f"num_beams is {generation.num_beams}, but beam search cannot decode speculatively; "
            "leave num_beams at 1 or speculation out"
        )


def check_vocabularies(tokenizer: Tokenizer, draft: Tokenizer) -> None:
    """Raise ``UserError`` unless equal ids are equal tokens in the tokenizers of a model and of its draft."""
    own, other = (each.core.get_vocab(with_added_tokens=True) for each in (tokenizer, draft))
    if own != other:
        wrong = min((own.items() ^ other.items()), key=lambda item: (item[1], item[0]))
        raise UserError(
            f"the draft model has another vocabulary: the token {wrong[0]!r} with the id {wrong[1]} is in one of them "
            "only; give a draft that was trained with the same tokenizer"
        )


def _check(model: Transformer, draft: Transformer) -> None:
    """Raise ``UserError`` if ``draft`` cannot propose tokens for ``model``."""
    if draft.vocab_size != model.vocab_size:
        raise UserError(
            f"the draft model has a vocabulary of {draft.vocab_size} tokens and the model one of {model.vocab_size}; "
            "they must be the same"
        )
    if draft.encoder is not None or not draft.spec.decodes:
        what = "an encoder" if draft.encoder is not None else "branches that see later positions"
        raise UserError(f"the draft model has {what}, so it cannot propose tokens; give a causal decoder")


class SpeculativeSampling(Sampling):
    """Batched sampler whose rows may gain several tokens per step. Made by ``Speculator.sampling``."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        generation: Generation,
        capacity: int | None,
        speculator: Speculator,
    ):
        self._speculator = speculator
        self._proposals: dict[int, Proposal] = {}
        super().__init__(model, prompts, generation, capacity)
        self._proposer = speculator.proposer(generation, self._first)

    def step(self) -> list[Drawn]:
        """Append at least one token to each running row, and return the tokens in the order of each text."""
        engine, gain, began = self.engine, self._speculator.gain, self._speculator.clock()
        count, rereads = len(engine.rows), any(len(row.tokens) - row.read > 1 for row in engine.rows)
        steady = all(engine.room(place) != 0 for place in range(count))  # no row is read from its start
        self._proposals = self._proposed() if gain.proposes else {}
        proposed = bool(self._proposals)
        if proposed:
            for row in engine.rows:
                row.tokens += self._proposals[row.key].tokens if row.key in self._proposals else []
            engine.mark()
        drawn = super().step()
        if steady and count:
            gain.record(len(drawn) / count, self._speculator.clock() - began, proposed or rereads)
        return drawn

    def _proposed(self) -> dict[int, Proposal]:
        """Proposals for the rows of the next step."""
        counts = {row.key: count for place, row in enumerate(self.engine.rows) if (count := self._room(place, row)) > 0}
        return self._proposer.propose({key: self.texts[key] for key in self.running}, counts) if counts else {}

    def _room(self, place: int, row: DecodedRow) -> int:
        """Number of tokens to propose for a row.

        Limited by the tokens that it may still gain, by its context, which must not slide within a pass, and by what
        is read again since a rejection: without a pass that has no proposals, this would grow in a state that cannot
        be cut.
        """
        most, room = self._speculator.speculation.num_tokens, self.engine.room(place)
        if len(row.tokens) - row.read > most + 1:
            return 0
        return min(most, self._rows[row.key].most - len(row.tokens) - 1, most if room is None else room)

    def _chosen(self, rows: Sequence[DecodedRow], reading: Reading) -> list[Next]:
        if not self._proposals:
            return super()._chosen(rows, reading)
        counts = [len(self._proposals[row.key].tokens) if row.key in self._proposals else 0 for row in rows]
        found = self._verified(rows, counts, at_least_single(reading.ends([count + 1 for count in counts])))
        self.engine.cut(
            [len(row.tokens) - count + len(new) - 1 for row, count, new in zip(rows, counts, found, strict=True)]
        )
        self._count(counts, found)
        self._history = None  # it lacks the tokens accepted here
        going: list[Next] = []
        for place, (row, new) in enumerate(zip(rows, found, strict=True)):
            self._drawn += [Drawn(row.key, token) for token in new]
            self.texts[row.key] += new
            if not self.is_full(row.key):
                going.append(Next(place, new[-1:]))
        return going

    def _count(self, counts: Sequence[int], found: Sequence[Sequence[int]]) -> None:
        """Add the rows with proposals to the counts."""
        accepted = [len(new) - 1 for count, new in zip(counts, found, strict=True) if count]
        passes, proposed, before = self._speculator.counts
        self._speculator.counts = Accepted(passes + len(accepted), proposed + sum(counts), before + sum(accepted))

    def _verified(self, rows: Sequence[DecodedRow], counts: Sequence[int], logits: Tensor) -> list[list[int]]:
        """New tokens of each row: accepted proposals and one token more.

        ``logits`` (M, V): after the last token and after each of the ``counts`` proposals of a row, row by row.
        """
        generation, text = self.generation, None
        if generation.repetition_penalty != 1.0:
            spans = zip(rows, counts, strict=True)
            texts = [row.tokens[: len(row.tokens) - left] for row, count in spans for left in range(count, -1, -1)]
            text = history(texts, logits)
        if any(proposal.chances is not None for proposal in self._proposals.values()):
            return self._accepted(rows, counts, probabilities(logits, generation, text))
        sound = True
        if generation.temperature == 0.0:
            best, chosen = filtered(logits, generation, text).max(-1)
            sound = all(map(math.isfinite, best.tolist()))
        else:
            chosen = pick(logits, generation, text, self._uniforms(rows, counts, logits))
        tokens, found = iter(checked(chosen.tolist(), logits.shape[-1], sound)), list[list[int]]()
        for row, count in zip(rows, counts, strict=True):
            own = list(islice(tokens, count + 1))
            found.append(own[: _equal(own, row.tokens[len(row.tokens) - count :]) + 1])
            if generation.temperature:
                self._rows[row.key].random.setstate(self._before[row.key])
                for _ in found[-1]:
                    self._rows[row.key].random.random()
        return found

    def _uniforms(self, rows: Sequence[DecodedRow], counts: Sequence[int], like: Tensor) -> Tensor:
        """Next random numbers of each row, one for each token that it may gain, (M). See ``_before``."""
        self._before = {row.key: self._rows[row.key].random.getstate() for row in rows}
        numbers = [
            self._rows[row.key].random.random()
            for row, count in zip(rows, counts, strict=True)
            for _ in range(count + 1)
        ]
        return torch.tensor(numbers, dtype=torch.float64, device=like.device)

    def _next(self, row: int) -> float:
        """Next random number of a row."""
        return self._rows[row].random.random()

    def _accepted(self, rows: Sequence[DecodedRow], counts: Sequence[int], p: Tensor) -> list[list[int]]:
        """New tokens of each row, whose proposals a draft drew; p (M, V): distributions of plain sampling."""
        firsts = [sum(counts[:place]) + place for place in range(len(counts))]
        found, weights = list[list[int]](), list[Tensor]()
        for row, first, ratios in zip(rows, firsts, self._ratios(rows, firsts, p), strict=True):
            own = self._rows[row.key].random
            kept = sum(1 for _ in takewhile(lambda ratio, own=own: own.random() < ratio, ratios))
            proposal = self._proposals.get(row.key, Proposal([]))
            found.append(proposal.tokens[:kept])
            rest = p[first + kept]
            if kept < len(ratios) and proposal.chances is not None:
                rest = remainder(rest, proposal.chances[kept])
            weights.append(rest)
        uniforms = torch.tensor(
            [self._rows[row.key].random.random() for row in rows], dtype=torch.float64, device=p.device
        )
        last = checked(draw_by(torch.stack(weights), uniforms).tolist(), p.shape[-1])
        return [[*new, token] for new, token in zip(found, last, strict=True)]

    def _ratios(self, rows: Sequence[DecodedRow], firsts: Sequence[int], p: Tensor) -> list[list[float]]:
        """p(x) / q(x) of the proposed tokens x of each row; its distributions p begin at ``firsts``."""
        found: list[Tensor] = []
        sizes: list[int] = []
        for row, first in zip(rows, firsts, strict=True):
            tokens, chances = self._proposals.get(row.key, Proposal([]))
            sizes.append(len(tokens))
            if chances is not None:
                at = torch.tensor(tokens, device=p.device)[:, None]
                found.append((p[first : first + len(tokens)].gather(-1, at) / chances.gather(-1, at))[:, 0])
        ratios = iter(torch.cat(found).tolist())
        return [list(islice(ratios, size)) for size in sizes]


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Weights max(p - q, 0) (V) of the token that replaces a rejected one; p where rounding leaves none."""
    rest = (p - q).clamp(min=0)
    return torch.where(rest.sum() > 0, rest, p)


def _equal(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of first tokens in which both agree."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
