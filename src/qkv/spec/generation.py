"""How text is drawn from a model, as data."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from qkv.spec.base import LARGEST_SEED, Seq, Spec
from qkv.spec.errors import Problem

DRAWING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""What changes the chances of tokens, and so has no place where the model's own most probable texts are searched."""

Measure = Literal["sum", "token", "character"]
"""What a given text is judged by: its log probability, or that a token or a character, which does not favour short texts."""


class Generation(Spec):
    """Applied in this order: repetition penalty, temperature, top-k, top-p, min-p.

    With ``num_beams`` above 1 nothing is drawn: beam search looks for the most probable texts, see ``qkv.generation.beam``.
    """

    max_new_tokens: int = Field(default=256, ge=0)
    temperature: float = Field(default=1.0, ge=0, description="0 takes the most probable token")
    top_k: int | None = Field(default=None, gt=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, lt=1, description="tokens less probable than this times the best are dropped")
    repetition_penalty: float = Field(default=1.0, gt=0)
    stop: Seq[Annotated[str, Field(min_length=1)]] = Field(default=(), description="strings that end the text; not part of it")
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    overflow: Literal["slide", "refuse"] = Field(
        default="slide", description="what to do past the context length where positions are bounded"
    )
    num_beams: int = Field(default=1, ge=1, description="more than 1: beam search, which draws nothing")
    length_penalty: float = Field(default=1.0, ge=-10, le=10, description="beams: the score is log probability / length ** this")
    num_return: int = Field(default=1, ge=1, description="beams: how many of the best texts are given")
    early_stopping: bool = Field(default=False, description="beams: end a prompt's search as soon as num_beams texts have ended")

    def problems(self) -> list[Problem]:
        found: list[Problem] = []
        if self.num_return > self.num_beams:
            found.append(Problem(("num_return",), f"{self.num_return} given, but num_beams is {self.num_beams}, and it can return no more"))
        return found + ([Problem((name,), self._not_searched(name)) for name in self.drawing()] if self.num_beams > 1 else [])

    def drawing(self) -> tuple[str, ...]:
        """The fields of ``DRAWING`` that would change what the model finds most probable; a temperature of 0 means just that."""
        return tuple(
            name for name in DRAWING if getattr(self, name) != _default(name) and (name, getattr(self, name)) != ("temperature", 0.0)
        )

    def _not_searched(self, name: str) -> str:
        wanted = "leave it out" if _default(name) is None else f"leave it at {_default(name)}"
        return f"{getattr(self, name)} given, but beam search (num_beams {self.num_beams}) draws nothing; {wanted}"

    def requested(self, **options: Any) -> Self:
        """``changed(**options)``; if these ask for beams, what ``self`` says of drawing no longer holds."""
        beams = options.get("num_beams", 1)
        if isinstance(beams, int) and beams > 1:
            options = {**{name: _default(name) for name in DRAWING}, **options}
        return self.changed(**options)


def _default(name: str) -> Any:
    return Generation.model_fields[name].default
