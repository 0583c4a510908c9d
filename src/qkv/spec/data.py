"""Specs of data sources, splits and batching."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, TypeAdapter, model_validator
from pydantic_core import CoreSchema

from qkv.spec.base import Part, Spec
from qkv.spec.errors import Problem
from qkv.spec.processors import INPUT, Processor
from qkv.spec.tokenizers import Characters, Tokenizer

Decimal = Literal["point", "comma"]
"""Decimal separator of numbers."""


class Batching(Part, slot=True):
    """Base class of batching methods. The batch of a step is a function of (seed, step) alone."""

    @property
    def document_separator(self) -> str | None:
        """Text between two documents of a file; None if the file is one sequence."""
        return None

    @property
    def tokens_of_window(self) -> int | None:
        """Number of tokens in a window of a text; None for the context length of the model."""
        return None

    @property
    def packed_length(self) -> int | None:
        """Number of positions of a row into which whole examples are packed; None for one example per row."""
        return None

    def halved(self) -> Self:
        """Return a copy with half as many tokens per batch, which needs half of the memory.

        Unchanged if the size of a batch is a number of rows.
        """
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
    """Concatenated documents, cut into shuffled windows, each read once per epoch; attention stays within documents."""

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

    Each batch has up to ``tokens`` positions, padding included.
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


class BestFit(Batching, kind="best_fit"):
    """Whole examples packed into rows of ``tokens`` positions by best fit (Ding et al. 2024), several to a row.

    Examples of a row do not see each other; a longer example is a row of its own.
    """

    tokens: int = Field(default=1024, gt=0, description="positions of a row")

    @property
    def tokens_of_window(self) -> int | None:
        return self.tokens

    @property
    def packed_length(self) -> int | None:
        return self.tokens


class HeldOut(Spec):
    """Selection of held-out rows in a table without a validation file; by default at random, stratified by label."""

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


def _input(value: Any) -> Processor | Tokenizer:
    """Parse the tokenizer or processor of an input from its form in a recipe."""
    fields = (
        cast("dict[str, Any]", value) if isinstance(value, dict) else {"kind": str(value).partition("(")[0].strip()}
    )
    kind = fields.get("kind")
    slot: Any = Tokenizer if isinstance(value, Tokenizer) or kind in Tokenizer.kinds() else Processor
    return TypeAdapter(slot).validate_python(value)


Input = Annotated[Processor | Tokenizer, BeforeValidator(_input)]
"""Converter of one of several inputs: a processor, or the tokenizer of a text."""


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
        default=None, description="tokenizer of the target text; default: the tokenizer of the source"
    )
    processor: Processor | None = Field(
        default=None, description="converter of inputs other than text, such as images; default: the input is text"
    )
    inputs: dict[str, Input] = Field(
        default={},
        description="several inputs by name, each with its processor or, for a text, its tokenizer; "
        "default: one input, read by processor or tokenizer",
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
        description="decimal separator, needed if a column has ambiguous numbers, such as 1,015",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1, "description": "the source only"}, handler(schema)]}

    @property
    def readers(self) -> dict[str, Processor | Tokenizer]:
        """Processor, or for a text the tokenizer, of each input by name; a single input has the name ``INPUT``."""
        return dict(self.inputs) or {INPUT: self.processor or self.tokenizer}

    @property
    def text_input(self) -> str | None:
        """Name of the input that is a text; None if there is none."""
        return next((name for name, each in self.readers.items() if isinstance(each, Tokenizer)), None)

    @property
    def text_tokenizer(self) -> Tokenizer:
        """Tokenizer of the input that is a text, else ``tokenizer``."""
        return next((each for each in self.readers.values() if isinstance(each, Tokenizer)), self.tokenizer)

    @property
    def processors(self) -> dict[str, Processor]:
        """Processor of each input that is not text, by name."""
        return {name: each for name, each in self.readers.items() if isinstance(each, Processor)}

    def problems(self) -> list[Problem]:
        texts = [name for name, each in self.inputs.items() if isinstance(each, Tokenizer)]
        wrong = next((name for name in self.inputs if not name.isidentifier() or name == INPUT), None)
        if wrong is not None:
            return [Problem(("inputs", wrong), f"not a valid input name; use letters, digits and _, not {INPUT!r}")]
        if len(texts) > 1:
            sentence = f"{texts[0]!r} is a text, too, but a row has only one text, which may contain the other inputs"
            return [Problem(("inputs", texts[1]), sentence)]
        if self.inputs and self.processor is not None:
            return [Problem(("processor",), "each of the inputs has its own processor; leave this key out")]
        return []

    @model_validator(mode="before")
    @classmethod
    def _lone_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


NO_DATA = Data(source="nothing")
"""Placeholder for tasks that generate their own data."""
