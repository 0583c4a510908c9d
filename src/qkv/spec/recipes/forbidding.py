"""Settings of text generation that forbid tokens, with the names that published checkpoints use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qkv.spec.base import Seq, Spec

TokenId = Annotated[int, Field(ge=0)]


class Forbidding(Spec):
    """Tokens that generation never selects, at any temperature and in beam search."""

    suppress_tokens: Seq[TokenId] = Field(default=(), description="token ids that are never generated")
    begin_suppress_tokens: Seq[TokenId] = Field(
        default=(), description="token ids that are not generated as the first new token"
    )
    bad_words_ids: Seq[Annotated[Seq[TokenId], Field(min_length=1)]] = Field(
        default=(), description="sequences of token ids that are never completed"
    )
    no_repeat_ngram_size: int = Field(
        default=0, ge=0, description="n-grams of this size may occur only once in prompt and text; 0: no limit"
    )

    @property
    def forbids(self) -> bool:
        """True if any of the settings forbids a token."""
        return bool(
            self.suppress_tokens or self.begin_suppress_tokens or self.bad_words_ids or self.no_repeat_ngram_size
        )
