"""Specs of processors, which transform raw input values; fitted on the training split and stored with the run."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem
from qkv.spec.extension.imports import import_more
from qkv.spec.register import import_all

INPUT = "input"
"""Name of the input of a model with a single input."""


Kind = Literal[
    "text",
    "label",
    "labels",
    "number",
    "words",
    "tags",
    "answers",
    "image",
    "sound",
    "signal",
    "series",
    "messages",
    "name",
    "cell",
]


class Role(NamedTuple):
    """Input or target of a task that a table column provides, such as "text" or "label", with the ``kind`` of its
    values.

    ``names``: common lower-case names of such a column, most usual first. An ``optional`` role is used only if the user
    sets its column; it is never guessed, except that with ``by_name`` a column of one of the names is used.
    ``written``: True for a text that the model generates, a target. ``clips``: True if a folder or an array of frames
    is a value. ``values``: what the column holds, in the help of commands, such as "image files"; default: the name.
    """

    name: str
    kind: Kind
    names: tuple[str, ...]
    optional: bool = False
    written: bool = False
    clips: bool = False
    values: str = ""
    by_name: bool = False

    def rename(self, name: str) -> Role:
        """Return a copy for one of several inputs, called ``name``; a column of this name is the first candidate."""
        return self._replace(name=name, names=(name, *self.names))


class Processor(Part, slot=True):
    """Base class of processors, which convert inputs other than text. The fields are settings and the fitted state.

    In a recipe (``data.processor``), fields that the training split determines are None; a run stores the fitted
    processor. Those that read files are implemented in ``qkv.data.processors``.
    """

    role: ClassVar[Role | None] = None
    """Role of the column of a table that holds the values; commands have an option of its name. None if no column
    does."""

    of_graphs: ClassVar[bool] = False
    """True if a value is a graph, whose nodes are the positions."""

    of_images: ClassVar[bool] = False
    """True if a value is an image of pixels."""

    of_sounds: ClassVar[bool] = False
    """True if a value is a sound, of samples over time."""

    of_cells: ClassVar[bool] = False
    """True if a value is a number or a category in a cell of a table, which may be empty."""

    in_windows: ClassVar[bool] = False
    """True if windows of a long sound can be read one by one, as frames of a whole number of samples."""

    @property
    def local(self) -> bool:
        """True if a value of the signal depends only on samples near it, so that a sound can be read as it arrives."""
        return False

    @property
    def varies(self) -> bool:
        """True if training values are changed at random, so that training and validation losses cannot be compared."""
        return False

    makes_codes: ClassVar[bool] = False
    """True if values are converted to codes: ids that a language model reads and generates."""

    pretrained: ClassVar[str] = ""
    """Name of the field with the folder of a trained run that the processor reads; empty if it reads none."""

    @property
    def reads_label(self) -> bool:
        """True if each value is read with its label, so that a model can generate values for a given label."""
        return False

    def of_pairs(self) -> Self:
        """Return a copy for values that are matched with others, without random changes that mirror or mix values."""
        return self

    def following(self, start: Processor) -> Self:
        """Return a copy that takes settings from ``start``, the processor of the model that is fine-tuned.

        By default no setting is taken, and all are fitted to the new data.
        """
        return self

    def values_of(self, size: int) -> int:
        """Return the number of values of the signal of an encoded value of ``size``; by default equal."""
        return size

    @property
    def num_simple(self) -> int | None:
        """Number of simple features of a value, which a linear model reads; None if there are none, or until fitted."""
        return None

    @property
    def num_gradients(self) -> int | None:
        """Number of features in the histograms of gradients of a value; None if there are none, or until fitted."""
        return None

    @property
    def num_columns(self) -> int | None:
        """Number of columns of each position of a value; None if there are none, or until fitted."""
        return None


def processor_roles() -> dict[str, Role]:
    """Return the roles of the columns that registered processors read, by name."""
    import_all("qkv.spec.signals")
    import_more()
    roles = (part.role for part in Processor.kinds().values())
    return {role.name: role for role in roles if role is not None}


class Scaler(Processor, kind="scaler"):
    """Standardisation: (x - mean) / deviation of each feature, with the mean and deviation of the training split."""

    mean: Seq[float]
    deviation: Seq[float]

    def problems(self) -> list[Problem]:
        if len(self.mean) != len(self.deviation):
            sentence = f"{len(self.deviation)} deviations are given for {len(self.mean)} means; give one for each"
            return [Problem(("deviation",), sentence)]
        if any(value <= 0 for value in self.deviation):
            return [
                Problem(
                    ("deviation",), f"{min(self.deviation)} given, but values are divided by it; give numbers above 0"
                )
            ]
        return []


class WordFeatures(Processor, kind="word_features"):
    """Hashed features of a word: lower-cased word, affixes, character n-grams, shape, and the neighbouring words.

    Word and affixes as in Ratinov and Roth 2009; n-grams of ``shortest`` to ``longest`` characters of the word with its
    borders as in Bojanowski et al. 2017; shape such as "Xxxx-dd". Nothing is fitted.
    """

    buckets: int = Field(default=1 << 16, gt=0, le=1 << 30, description="number of different hashed features")
    affixes: int = Field(default=4, ge=0, le=100, description="longest prefixes and suffixes; 0 for none")
    shortest: int = Field(default=3, ge=1, le=100, description="characters of the shortest n-grams")
    longest: int = Field(default=0, ge=0, le=100, description="characters of the longest n-grams; 0 for no n-grams")
    shape: bool = Field(default=True, description="pattern of upper-case letters, lower-case letters and digits")
    neighbours: int = Field(default=1, ge=0, le=100, description="words on each side that are read, with their shapes")

    @property
    def typical(self) -> int:
        """Number of features of a typical word, of six letters."""
        letters = 6
        ngrams = sum(max(0, letters + 3 - size) for size in range(self.shortest, self.longest + 1))
        features = 1 + 2 * min(self.affixes, letters) + ngrams + 2 * self.shape
        return features + 2 * self.neighbours * (1 + self.shape)

    def problems(self) -> list[Problem]:
        if 0 < self.longest < self.shortest:
            sentence = f"{self.longest} characters are fewer than the {self.shortest} of the shortest n-grams"
            return [Problem(("longest",), f"{sentence}; give at least as many, or 0 for no n-grams")]
        return []
