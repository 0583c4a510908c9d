"""Specs of wide paths: linear maps from features of a whole row to the outputs, beside the deep path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import ByName, Part
from qkv.spec.errors import Problem
from qkv.spec.frontends import Frontend
from qkv.spec.heads import Head
from qkv.spec.processors import Processor

PAIR_FEATURES = ("common neighbours", "Adamic-Adar", "degrees", "similarity")
"""Names of the features of a pair of nodes."""
LARGEST = 1 << 24
"""Upper bound of the number of buckets, far beyond any published model."""


class WidePath(Part, slot=True):
    """Base class of wide paths (Wide & Deep Learning, Cheng et al. 2016): outputs = a · deep(x) + b · wide(features).

    The wide path is linear, so it is fitted to the training split in closed form or by convex optimisation before the
    deep path is trained. a and b are chosen on the validation split after that.
    """

    noun: ClassVar[str] = ""
    """Name of the features in output, such as "hog"; empty: the name of the task's simple features."""
    of_values: ClassVar[bool] = False
    """True if it reads features of the values of a processor."""
    gradients: ClassVar[bool] = False
    """True if it reads histograms of gradients beside the simple features."""
    counts: ClassVar[bool] = False
    """True if it reads the simple features, followed by counts of the elements of a value (a bag)."""

    @property
    def sides(self) -> tuple[WidePath, ...]:
        """Return the parts that read two inputs, if it compares them; by default none."""
        return ()

    def of_window(self, steps: int) -> Self:
        """Return a copy for forecasts from windows of ``steps`` steps; by default unchanged."""
        return self

    def of_processor(self, processor: Processor) -> Self:
        """Return a copy for the values of a fitted processor; by default unchanged."""
        return self

    def of_texts(self, texts: Sequence[str]) -> Self:
        """Return a copy with room for as many texts of training rows, none longer; by default unchanged."""
        return self

    def of_rows(self, count: int) -> Self:
        """Return a copy with room for ``count`` training rows; by default unchanged."""
        return self

    def of_both(self, first: Processor | None, second: Processor | None) -> Self:
        """Return a copy for two inputs and their fitted processors, None for texts; by default unchanged."""
        return self

    def of_inputs(self, processors: Mapping[str, Processor]) -> Self:
        """Return a copy for several inputs in one row, with their fitted processors; by default unchanged."""
        return self

    @property
    def joins(self) -> bool:
        """True if it reads several inputs that are read together."""
        return False

    def misfit(self, frontend: Frontend, head: Head) -> str:
        """Return an error message if the path cannot add to the outputs of the model, else "".

        By default, the path needs one output per row.
        """
        if Head.kinds()[head.serves].pools:  # its outputs have the shape of the replaced head's outputs
            return ""
        sentence = f"a wide path adds to one output per row, but the head {head.kind!r} has other outputs"
        return f"{sentence}; leave it out, or give a classification or regression head"


def _sum(*counts: int | None) -> int | None:
    present = [count for count in counts if count is not None]
    return sum(present) if len(present) == len(counts) else None


class Ngrams(WidePath, kind="ngrams"):
    """Linear map of hashed n-grams of words and of characters within words, weighted by TF-IDF.

    Weight of feature f in a row: (1 + ln count) · idf_f, divided by the L2 norm over the row's word features, or its
    character features. idf_f = ln((1 + n) / (1 + n_f)) + 1, n rows of which n_f have the feature.
    """

    words: int = Field(default=2, ge=0, le=5, description="longest n-gram of words; 0: none")
    least: int = Field(default=1, ge=1, le=20, description="shortest n-gram of characters")
    characters: int = Field(default=5, ge=0, le=20, description="longest n-gram of characters; 0: none")
    buckets: int = Field(
        default=1 << 17, ge=2, le=LARGEST, description="hash buckets of word n-grams, and of character n-grams"
    )

    def problems(self) -> list[Problem]:
        if not self.words and not self.characters:
            return [Problem(("characters",), "neither words nor characters are counted; give one of them above 0")]
        if 0 < self.characters < self.least:
            sentence = f"n-grams of at most {self.characters} characters are shorter than the shortest, {self.least}"
            return [Problem(("characters",), sentence + "; give at least as many")]
        return []


class Features(WidePath, kind="features"):
    """Linear map of the simple features of the processor's values, such as averaged pixels, standardised."""

    of_values = True
    count: int | None = Field(default=None, gt=0, le=LARGEST, description="features; filled in from the data")

    def of_processor(self, processor: Processor) -> Self:
        return self.changed(count=processor.num_simple)

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if frontend.processor is None:
            return "'features' reads the features of a processor, but the input is text; use 'ngrams'"
        return super().misfit(frontend, head)


class Gradients(Features, kind="hog"):
    """Linear map of averaged pixels and of histograms of oriented gradients (Dalal & Triggs 2005), standardised."""

    noun = "hog"
    gradients = True

    def of_processor(self, processor: Processor) -> Self:
        return self.changed(count=_sum(processor.num_simple, processor.num_gradients))

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if frontend.processor is None or not frontend.processor.of_images:
            return "'hog' reads gradients of images; use 'features', or a front end of images"
        return super().misfit(frontend, head)


class Subtrees(Features, kind="subtrees"):
    """Linear map of the simple features of a graph and of a Weisfeiler–Lehman bag of its nodes' neighbourhoods.

    A node's label after round k is the hash of its label and the multiset of its neighbours' labels after round k - 1:
    it represents the subtree of depth k around the node (Shervashidze et al. 2011). The initial label is the node's
    tag, its quantised features, or, without both, its degree. The feature of a label is ln(1 + count). The penalty, and
    whether simple features, subtrees or both are read, are chosen by cross-validation.
    """

    noun = "subtrees"
    counts = True
    rounds: int = Field(default=4, ge=0, le=32, description="rounds of relabelling: depth of the subtrees")
    buckets: int = Field(default=1 << 17, ge=2, le=LARGEST, description="hash buckets of the labels")

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if frontend.processor is None or not frontend.processor.of_graphs:
            return "'subtrees' counts neighbourhoods in graphs; use 'features', or the front end 'nodes'"
        return super().misfit(frontend, head)


class Columns(Features, kind="columns"):
    """Linear map of the columns of each node of a graph: features, tags and position encodings, concatenated."""

    def of_processor(self, processor: Processor) -> Self:
        return self.changed(count=processor.num_columns)

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if frontend.processor is not None and frontend.processor.of_graphs and head.per_position and head.weighs:
            return ""
        return "'columns' adds to the logits of each node of a graph; use the front end 'nodes' and the head 'tokens'"


class PairFeatures(Features, kind="pairs"):
    """Linear map of the features of a pair of nodes: common neighbours, Adamic–Adar, degrees, similarity of columns.

    Degrees and neighbours are counted without the edge between the two nodes.
    """

    count: int | None = Field(default=len(PAIR_FEATURES), gt=0, le=LARGEST, description="features of a pair")

    def of_processor(self, processor: Processor) -> Self:
        return self

    def misfit(self, frontend: Frontend, head: Head) -> str:
        return "" if head.kind == "edges" else "'pairs' adds to the logits of edges; use the head 'edges'"


class LinearWindow(WidePath, kind="dlinear"):
    """Linear map of the standardised window of each channel to the forecast (DLinear, Zeng et al. 2023).

    In training, trend (moving average over 25 steps) and remainder have separate linear maps; the run stores their sum,
    which is one map. After training, patches, linear maps, baselines and mixtures are compared on the validation part;
    the run keeps the best of those that ``keeps`` allows.
    """

    keeps: Literal["any", "deep"] = Field(
        default="any", description="any: the best of all; deep: patches, alone or mixed with this path"
    )
    steps: int | None = Field(default=None, gt=0, description="steps of a window; filled in from the task")

    def of_window(self, steps: int) -> Self:
        return self.changed(steps=steps)

    def misfit(self, frontend: Frontend, head: Head) -> str:
        apart = getattr(frontend, "channels", "") == "apart" and getattr(frontend, "normalise", "") == "window"
        if apart and not getattr(frontend, "affine", False) and getattr(head, "over", "") in ("mean", "flatten"):
            return ""
        sentence = "'dlinear' adds to forecasts of the front end series_patches(channels=apart, normalise=window)"
        return f"{sentence}; leave it out, or use this front end"


class Nearest(Features, kind="nearest"):
    """Texts of the training rows: the text of the row whose input has the most similar simple features.

    It competes with the model that writes texts: after training, the run keeps what is better on the validation split.
    """

    noun = "nearest neighbour"
    rows: int | None = Field(default=None, gt=0, description="training rows; filled in from the data")
    size: int | None = Field(default=None, ge=0, description="bytes of their texts; filled in from the data")

    def of_texts(self, texts: Sequence[str]) -> Self:
        if self.rows is not None:
            return self
        return self.changed(rows=len(texts), size=sum(len(text.encode()) for text in texts))

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if frontend.processor is None or head.kind != "language_model":
            return "'nearest' finds texts of images or other signals; use it for captions, or leave it out"
        return ""


class AllInputs(Features, kind="inputs"):
    """Linear map of the features of several inputs that are read together: of signals, of cells, and n-grams of a text.

    The features of inputs that are not text are standardised; n-grams are weighted as by ``ngrams``. The share of each
    input and the penalty have the least validation loss. After training, each input alone is a contestant, too.
    """

    noun = "linear"
    parts: ByName[WidePath] = Field(default={}, description="features of each input by name")

    @property
    def joins(self) -> bool:
        return True

    @property
    def text(self) -> Ngrams | None:
        """The n-grams of the text; None without a text."""
        return next((part for part in self.parts.values() if not part.of_values), None)  # type: ignore[return-value]

    @property
    def ranges(self) -> dict[str, slice]:
        """Columns of each input that is not text, in the order of ``parts``."""
        ranges, begin = dict[str, slice](), 0
        for name, part in self.parts.items():
            size = getattr(part, "count", None) or 0
            if part.of_values:
                ranges[name], begin = slice(begin, begin + size), begin + size
        return ranges

    def of_processor(self, processor: Processor) -> Self:
        return self

    def of_inputs(self, processors: Mapping[str, Processor]) -> Self:
        parts = {
            name: part.of_processor(processors[name]) if name in processors else part
            for name, part in self.parts.items()
        }
        count = sum(getattr(part, "count", None) or 0 for part in parts.values() if part.of_values)
        return self.changed(parts=parts, count=max(1, count))

    def problems(self) -> list[Problem]:
        sentence = "reads several inputs: 'ngrams' of a text, 'features' or 'hog' of others, not {}"
        kinds = {name: part.kind for name, part in self.parts.items()}
        wrong = {name: kind for name, kind in kinds.items() if kind not in ("ngrams", "features", "hog")}
        return [Problem(("parts", name), sentence.format(repr(kind))) for name, kind in wrong.items()]

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if not frontend.inputs_read:
            return "'inputs' reads several inputs in one row; use the front end 'joined', or 'features' or 'ngrams'"
        return WidePath.misfit(self, frontend, head)


class PairMap(WidePath, kind="pair_map"):
    """Linear maps of the features of two inputs, such as an image and a text, into one space of vectors.

    The vectors of the second input are its features on their principal axes; ridge regression predicts them from the
    features of the first. Similarity = a · that of the model's vectors + b · that of these; a + b = 1. In place of the
    prediction, the vector of the training row with the most similar first input is a contestant, too.
    """

    noun = "linear map"
    first: WidePath = Field(description="features of the first input")
    second: WidePath = Field(description="features of the second input")
    axes: int = Field(default=256, ge=1, le=LARGEST, description="maximum number of principal axes")
    rows: int | None = Field(default=None, gt=0, description="training rows that are kept; filled in from the data")

    def of_rows(self, count: int) -> Self:
        return self if self.rows is not None else self.changed(rows=count)

    @property
    def sides(self) -> tuple[WidePath, ...]:
        return self.first, self.second

    def of_both(self, first: Processor | None, second: Processor | None) -> Self:
        parts = zip((self.first, self.second), (first, second), strict=True)
        fitted = [part if each is None else part.of_processor(each) for part, each in parts]
        return self.changed(first=fitted[0], second=fitted[1])

    def problems(self) -> list[Problem]:
        sentence = "a map of two inputs reads 'ngrams' of a text, or 'features' or 'hog' of another input, not {}"
        parts = {"first": self.first, "second": self.second}
        wrong = {name: part.kind for name, part in parts.items() if type(part) not in (Ngrams, Features, Gradients)}
        return [Problem((name,), sentence.format(repr(kind))) for name, kind in wrong.items()]

    def misfit(self, frontend: Frontend, head: Head) -> str:
        if head.kind == "matching":
            return ""
        return "'pair_map' compares vectors of two inputs; use the head 'matching', or leave the wide path out"
