"""Where the examples come from and how they are laid into batches, as data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from qkv.spec.base import Part, Spec
from qkv.spec.tokenizers import Characters, Tokenizer


class Batching(Part, slot=True):
    """How a batch of sequences is cut from the corpus. The batch of a step depends on (seed, step) alone."""


class RandomCrops(Batching, kind="random_crops"):
    """Windows of a text that begin anywhere, or whole examples, drawn with replacement."""


class Packed(Batching, kind="packed"):
    """Documents joined end to end and cut into windows, each visited once an epoch in a shuffled order; attention stays inside a document."""

    separator: str = Field(default="\n\n", min_length=1, description="what stands between two documents of the file")


class LengthBuckets(Batching, kind="length_buckets"):
    """One document or example a row, those of similar length together, padded on the right."""

    separator: str = Field(default="\n", min_length=1, description="what stands between two documents of a text")
    buckets: int = Field(default=8, gt=0, description="of more, the rows of a batch are closer in length and less mixed")


class TokenBuckets(Batching, kind="token_buckets"):
    """Documents or examples of similar length together, as many a batch as fill ``tokens`` positions, padding included (Vaswani et al. 2017)."""

    tokens: int = Field(default=2048, gt=0, description="positions of one batch: rows × the longest row, source and target together")
    separator: str = Field(default="\n", min_length=1, description="what stands between two documents of a text")


class Data(Spec):
    """A text or a table of examples, its tokenizer and its split. A lone string is the source."""

    source: str = Field(
        min_length=1, description="the name of a known data set, or a file; 'a.txt | b.txt' joins parallel texts line by line"
    )
    validation: str | None = Field(default=None, min_length=1, description="a file of its own for the held-out part")
    test: str | None = Field(default=None, min_length=1, description="a file of its own for the test part")
    format: Literal["csv", "tsv", "jsonl", "conll", "squad", "parallel"] | None = Field(
        default=None, description="of a table; default: told by the file's ending and first lines"
    )
    columns: dict[str, str] = Field(
        default={}, description="which column plays which part, such as {text: review, label: stars}; default: guessed"
    )
    bad_rows: Literal["skip", "refuse"] = Field(default="skip", description="what to do with rows that cannot be used; both say which")
    tokenizer: Tokenizer = Characters()
    target_tokenizer: Tokenizer | None = Field(
        default=None, description="of the text that is written; default: the same tokenizer for both"
    )
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


NO_DATA = Data(source="nothing")
"""What a task that draws its own data reads."""
