"""How text is drawn from a model, as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qkv.spec.base import Seq, Spec


class Generation(Spec):
    """Applied in this order: repetition penalty, temperature, top-k, top-p, min-p."""

    max_new_tokens: int = Field(default=256, ge=0)
    temperature: float = Field(default=1.0, ge=0, description="0 takes the most probable token")
    top_k: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, lt=1, description="tokens less probable than this times the best are dropped")
    repetition_penalty: float = Field(default=1.0, gt=0)
    stop: Seq[Annotated[str, Field(min_length=1)]] = Field(default=(), description="strings that end the text; not part of it")
    seed: int | None = Field(default=None, ge=0)
    overflow: Literal["slide", "refuse"] = Field(
        default="slide", description="what to do past the context length where positions are bounded"
    )
