"""Speculative decoding: several tokens are proposed, and one forward pass verifies them.

Proposals are looked up in the text or drawn by a draft model with the same vocabulary
(``qkv.generation.decode.proposals``), for the rows of ``qkv.generation.decode.sample.Sampling`` that have a
``Speculator``. ``qkv.generation.decode.verify`` decides which tokens are accepted. Rejected tokens are removed from the
state: states that can drop positions are truncated, others are restored from a copy, see ``Engine.cut``.
``qkv.generation.decode.gain`` measures whether proposals speed up decoding, and stops them if they do not.

With look-up, and with a draft at temperature 0, texts equal those of plain decoding with the same seed. With a draft at
a positive temperature, texts have the same distribution as with plain decoding; the text of one seed may depend on
measured times unless ``Speculation.adaptive`` is false.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from qkv.generation.decode.gain import Gain
from qkv.generation.decode.proposals import Draft, LookUp, Proposer
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation, Speculation
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer


class Accepted(NamedTuple):
    """Counts of proposed and accepted tokens over all rows.

    passes: number of passes that verified a proposal, counted once per row.   proposed: number of proposed tokens.
    accepted: number of proposed tokens that were accepted.
    """

    passes: int = 0
    proposed: int = 0
    accepted: int = 0

    @property
    def mean_accepted(self) -> float:
        """Mean number of accepted tokens per pass; each pass yields one more token."""
        return self.accepted / self.passes if self.passes else 0.0


class Speculator:
    """Settings of speculative decoding, with token counts and speed-up of the latest generation that used them."""

    def __init__(
        self,
        speculation: Speculation | None = None,
        draft: Transformer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """``draft``: model that proposes tokens, for the kind "draft" only.   ``clock``: function that returns seconds.

        Raises ``UserError`` for a draft with another kind, and for the kind "draft" without a draft.
        """
        self.speculation = speculation or Speculation(kind="lookup" if draft is None else "draft")
        self.draft, self.clock = draft, clock
        self.counts, self.gain = Accepted(), Gain(self.speculation.adaptive)
        if (draft is None) != (self.speculation.kind == "lookup"):
            wrong = "needs a draft model" if draft is None else "takes no draft model"
            raise UserError(f"speculation of the kind {self.speculation.kind!r} {wrong}; change one of them")

    def check(self, model: Transformer, generation: Generation) -> None:
        """Raise ``UserError`` for beam search, and for a draft that cannot propose for ``model``."""
        refuse_beams(generation)
        if self.draft is not None:
            _check(model, self.draft)

    def begin(self) -> Proposer:
        """Return a new source of proposals for a sampler, and reset counts and gain."""
        self.counts, self.gain = Accepted(), Gain(self.speculation.adaptive)
        return LookUp(self.speculation.ngram) if self.draft is None else Draft(self.draft)

    def count(self, proposed: int, accepted: int) -> None:
        """Count one verified proposal: numbers of ``proposed`` and ``accepted`` tokens."""
        passes, before, total = self.counts
        self.counts = Accepted(passes + 1, before + proposed, total + accepted)

    def summary(self) -> str:
        """Return one sentence with the counts and the speed-up, for the user."""
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
    """Raise ``UserError`` unless the tokenizers of a model and of its draft have the same vocabulary."""
    vocabulary, other = (each.core.get_vocab(with_added_tokens=True) for each in (tokenizer, draft))
    if vocabulary != other:
        wrong = min((vocabulary.items() ^ other.items()), key=lambda item: (item[1], item[0]))
        raise UserError(
            f"the draft model has another vocabulary: only one of the two has the token {wrong[0]!r} with the id "
            f"{wrong[1]}; use a draft that was trained with the same tokenizer"
        )


def _check(model: Transformer, draft: Transformer) -> None:
    """Raise ``UserError`` if ``draft`` cannot propose tokens for ``model``."""
    if draft.vocab_size != model.vocab_size:
        raise UserError(
            f"the draft model has a vocabulary of {draft.vocab_size} tokens and the model one of {model.vocab_size}; "
            "both must have the same vocabulary"
        )
    if draft.encoder is not None or not draft.spec.decodes:
        what = "an encoder" if draft.encoder is not None else "branches that see later positions"
        raise UserError(f"the draft model has {what}, so it cannot propose tokens; use a causal decoder")
