"""Where the examples come from and how they are laid into batches, as data."""

from __future__ import annotations

from typing import Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from qkv.spec.base import Part, Spec
from qkv.spec.tokenizers import Characters, Tokenizer


class Batching(Part, slot=True):
    """How a batch of sequences is cut from the corpus. The batch of a step depends on (seed, step) alone."""


class RandomCrops(Batching, kind="random_crops"):
    """Windows that begin anywhere, with replacement."""


class Packed(Batching, kind="packed"):
    """Documents joined end to end and cut into windows, each visited once an epoch in a shuffled order; attention stays inside a document."""

    separator: str = Field(default="\n\n", min_length=1, description="what stands between two documents of the file")


class LengthBuckets(Batching, kind="length_buckets"):
    """One document a row, documents of similar length together, padded on the right."""

    separator: str = Field(default="\n", min_length=1, description="what stands between two documents of the file")
    buckets: int = Field(default=8, gt=0, description="of more, the rows of a batch are closer in length and less mixed")


class Data(Spec):
    """A text, its tokenizer and its split. A lone string is the source."""

    source: str = Field(min_length=1, description="the name of a known data set, or a file")
    tokenizer: Tokenizer = Characters()
    batching: Batching = RandomCrops()
    validation_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="of the text, taken from its end, where the source has no split of its own"
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1, "description": "the source alone"}, handler(schema)]}

    @model_validator(mode="before")
    @classmethod
    def _lone_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value
