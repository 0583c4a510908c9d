"""Specs of text generation: sampling, beam search and speculative decoding."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from qkv.spec.base import LARGEST_SEED, Seq, Spec
from qkv.spec.errors import Problem
from qkv.spec.recipes.forbidding import Forbidding
from qkv.system.errors import quoted

FILTERS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields that configure the logit filters; rows with equal values of these fields are filtered together."""
DRAWING = (*FILTERS, "logit_bias", "presence_penalty", "frequency_penalty")
"""Fields that apply to sampling and not to beam search."""


def _pairs(value: Any) -> Any:
    """Convert biases to pairs (token id, bias) in the order of ids. Raises ``ValueError``.

    ``value``: a mapping, whose keys may be text, or pairs.
    """
    items = getattr(value, "items", None)  # of a mapping
    try:
        entries = value if items is None else items()
        pairs = {_token(index): bias for index, bias in entries}
    except (TypeError, ValueError):
        raise ValueError(f"{quoted(value)} given; allowed: numbers by token id, such as {{15: -2.5}}") from None
    return tuple(sorted(pairs.items()))


def _token(index: Any) -> int:
    """Return a token id as int, also if it is written as text, as JSON writes keys. Raises ``ValueError``."""
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        return int(index)
    if type(index) is not int:
        raise ValueError
    return index


LogitBias = Annotated[
    tuple[tuple[Annotated[int, Field(ge=0)], float], ...],
    BeforeValidator(_pairs),
    PlainSerializer(lambda pairs: {str(index): bias for index, bias in pairs}),
    WithJsonSchema({"type": ["object", "array"], "additionalProperties": {"type": "number"}}),
]
"""Pairs (token id, number added to its logit)."""

Measure = Literal["sum", "token", "character"]
"""Score of a text: its log probability, or its log probability per token or per character.

The latter two do not favour short texts.
"""


class Generation(Forbidding):
    """Options of text generation.

    They are applied in this order: bias, presence and frequency penalty, repetition penalty, temperature, top-k, top-p,
    min-p. See ``qkv.generation.decode.adjust`` and ``qkv.generation.logits.filters``.

    ``num_beams`` > 1 selects beam search instead of sampling; see ``qkv.generation.decode.beam``.
    """

    max_new_tokens: int = Field(default=256, ge=0, description="maximum number of new tokens")
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature; 0 takes the most probable token")
    top_k: int | None = Field(default=None, gt=0, description="sample only from the top_k most probable tokens")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="sample from the smallest set of tokens with probability top_p"
    )
    min_p: float | None = Field(
        default=None, ge=0, lt=1, description="drop tokens less probable than min_p times the most probable"
    )
    repetition_penalty: float = Field(default=1.0, gt=0, description="values above 1 make repeated tokens less likely")
    presence_penalty: float = Field(
        default=0.0, description="subtract presence_penalty from the logits of tokens generated before"
    )
    frequency_penalty: float = Field(
        default=0.0, description="subtract frequency_penalty from a token's logit for each time it was generated"
    )
    logit_bias: LogitBias = Field(default=(), description="numbers that are added to the logits of tokens, by token id")
    stop: Seq[Annotated[str, Field(min_length=1)]] = Field(
        default=(), description="strings that end the text; not included in it"
    )
    stop_token_ids: Seq[Annotated[int, Field(ge=0)]] = Field(
        default=(), description="tokens that end the text; not included in it"
    )
    min_tokens: int = Field(
        default=0,
        ge=0,
        description="number of new tokens before which nothing in stop and stop_token_ids ends the text",
    )
    seed: int | None = Field(
        default=None, ge=0, le=LARGEST_SEED, description="random seed; default: a new one each time"
    )
    overflow: Literal["slide", "refuse"] = Field(
        default="slide", description="when the context is full: drop old tokens, or refuse"
    )
    num_beams: int = Field(default=1, ge=1, description="number of beams; above 1: beam search, no sampling")
    length_penalty: float = Field(
        default=1.0, ge=-10, le=10, description="rank beams by log probability / length ** length_penalty"
    )
    num_return: int = Field(default=1, ge=1, description="number of texts that beam search returns")
    early_stopping: bool = Field(default=False, description="stop beam search as soon as num_beams texts are complete")

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.num_return > self.num_beams:
            problems.append(
                Problem(
                    ("num_return",),
                    f"{self.num_return} given, but beam search returns at most num_beams = {self.num_beams} texts",
                )
            )
        if self.min_tokens > self.max_new_tokens:
            sentence = f"{self.min_tokens} given, but a text has at most max_new_tokens = {self.max_new_tokens}"
            problems.append(Problem(("min_tokens",), sentence))
        return problems + (
            [Problem((name,), self._not_searched(name)) for name in self.drawing()] if self.num_beams > 1 else []
        )

    def drawing(self) -> tuple[str, ...]:
        """Return the names of sampling settings that differ from their defaults; temperature 0 (greedy) is left out."""
        return tuple(
            name
            for name in DRAWING
            if getattr(self, name) != _default(name) and (name, getattr(self, name)) != ("temperature", 0.0)
        )

    def _not_searched(self, name: str) -> str:
        advice = "leave it out" if _default(name) in (None, ()) else f"leave it at {_default(name)}"
        return f"{getattr(self, name)} given, but beam search (num_beams {self.num_beams}) does not sample; {advice}"

    def requested(self, **options: Any) -> Self:
        """Return a copy with ``options`` set; if they select beam search, reset the other sampling settings."""
        beams = options.get("num_beams", 1)
        if isinstance(beams, int) and beams > 1:
            options = {**{name: _default(name) for name in DRAWING}, **options}
        return self.changed(**options)


class Speculation(Spec):
    """Options of speculative decoding: several tokens are proposed, and one forward pass verifies them.

    kind: "lookup" proposes the tokens that followed the latest occurrence of the text's last tokens (Saxena 2023);
    "draft" proposes tokens generated by a smaller model (Leviathan et al. 2023; Chen et al. 2023). See
    ``qkv.generation.decode.speculate``.
    """

    kind: Literal["lookup", "draft"] = "lookup"
    num_tokens: int = Field(default=8, ge=1, le=256, description="number of tokens proposed for one forward pass")
    ngram: int = Field(default=3, ge=1, le=64, description="lookup: length of the longest n-gram that is looked up")
    adaptive: bool = Field(default=True, description="stop proposing while plain decoding is measured to be faster")


def _default(name: str) -> Any:
    return Generation.model_fields[name].default
