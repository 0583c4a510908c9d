"""Specs of data sources, splits and batching."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from qkv.spec.base import Part, Spec
from qkv.spec.errors import Problem
from qkv.spec.processors import Processor
from qkv.spec.tokenizers import Characters, Tokenizer

Decimal = Literal["point", "comma"]
"""Mark before the decimals of a number."""


class Batching(Part, slot=True):
    """Base class of the ways to form batches. The batch of a step is a function of (seed, step) alone."""

    @property
    def document_separator(self) -> str | None:
        """Text between two documents of a file; None if the file is one sequence."""
        return None

    @property
    def tokens_of_window(self) -> int | None:
        """Tokens of a window of a text; None for as many as the model reads."""
        return None

    def halved(self) -> Self:
        """Copy for half of the memory: half of the tokens per batch, or unchanged if batches are counted in rows."""
        return self


class RandomCrops(Batching, kind="random_crops"):
    """Windows at random offsets of a text, or whole examples, sampled with replacement."""

    window: int | None = Field(
        default=None, ge=1, description="tokens of a window of a text; default: the model's context length"
    )

    @property
    def tokens_of_window(self) -> int | None:
        return self.window


class Packed(Batching, kind="packed"):
    """Concatenated documents cut into windows, shuffled, each once per epoch; attention does not cross documents."""

    separator: str = Field(default="\n\n", min_length=1, description="separator of documents in the file")

    @property
    def document_separator(self) -> str | None:
        return self.separator


class LengthBuckets(Batching, kind="length_buckets"):
    """One document or example per row, batched by similar length, right-padded."""

    separator: str = Field(default="\n", min_length=1, description="separator of documents in a text")
    buckets: int = Field(default=8, gt=0, description="number of length classes; more: less padding, less shuffling")

    @property
    def document_separator(self) -> str | None:
        return self.separator


class TokenBuckets(Batching, kind="token_buckets"):
    """Batches of documents or examples of similar length (Vaswani et al. 2017).

    Each has up to ``tokens`` positions, padding included.
    """

    tokens: int = Field(
        default=2048, gt=0, description="positions per batch: rows × longest row, source and target together"
    )
    separator: str = Field(default="\n", min_length=1, description="separator of documents in a text")

    @property
    def document_separator(self) -> str | None:
        return self.separator

    def halved(self) -> Self:
        return self.changed(tokens=max(1, self.tokens // 2))


class HeldOut(Spec):
    """Held-out rows of a table without a validation file; by default at random, stratified by label."""

    group: str | None = Field(
        default=None, min_length=1, description="column; rows with the same value are in the same split"
    )
    time: str | None = Field(
        default=None, min_length=1, description="column of numbers or ISO dates; the last rows are held out"
    )

    @property
    def column(self) -> str | None:
        """Column that decides the split; None for a split at random."""
        return self.group or self.time

    def problems(self) -> list[Problem]:
        both = self.group is not None and self.time is not None
        return [Problem(("time",), "rows are split by group or by time; give one of them")] if both else []


class Data(Spec):
    """Text or table of examples, with tokenizer, split and batching. A single string is read as ``source``."""

    source: str = Field(
        min_length=1,
        description="name of a known data set, or a file; 'a.txt | b.txt' joins parallel texts line by line",
    )
    validation: str | None = Field(default=None, min_length=1, description="file of the held-out part")
    test: str | None = Field(default=None, min_length=1, description="file of the test part")
    format: Literal["csv", "tsv", "jsonl", "conll", "squad", "parallel", "fasta"] | None = Field(
        default=None, description="format of a table; default: detected from the file's suffix and first lines"
    )
    columns: dict[str, str] = Field(
        default={}, description="columns by role, such as {text: review, label: stars}; default: guessed"
    )
    bad_rows: Literal["skip", "refuse"] = Field(
        default="skip", description="skip or refuse rows that cannot be used; both report them"
    )
    tokenizer: Tokenizer = Characters()
    target_tokenizer: Tokenizer | None = Field(
        default=None, description="tokenizer of the target text; default: the same for both"
    )
    processor: Processor | None = Field(
        default=None, description="converter of inputs other than text, such as images; default: the input is text"
    )
    batching: Batching = RandomCrops()
    validation_fraction: float = Field(
        default=0.1, gt=0, lt=1, description="held-out fraction, from the end of the text, if the source has no split"
    )

    split: HeldOut = HeldOut()
    label_separator: str | None = Field(
        default=None,
        min_length=1,
        description="text between several labels in one cell; default: the first of | ; , in the column",
    )

    decimal: Decimal | None = Field(
        default=None,
        description="mark before decimals, where a column of numbers such as 1,015 can be read in two ways",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1, "description": "the source only"}, handler(schema)]}

    @model_validator(mode="before")
    @classmethod
    def _lone_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


NO_DATA = Data(source="nothing")
"""Placeholder for tasks that generate their own data."""
