"""What is learned, as data. A task says what it reads, what the model must be able to do, and which head it asks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.branches import Attention
from qkv.spec.errors import Problem
from qkv.spec.masks import Full
from qkv.spec.model import Model

Reads = Literal["text", "examples", "nothing"]
Needs = Literal["causal", "decodes", "anything"]


class Task(Part, slot=True):
    """What is learned."""

    reads: ClassVar[Reads] = "text"
    """A running text, a table of examples, or nothing: the task draws its own data."""
    needs: ClassVar[Needs] = "anything"
    """causal: no position may see a later one; decodes: none after a row's own prefix; anything: the model need not write."""
    takes_encoder: ClassVar[bool] = False
    """True if the model may be an encoder–decoder."""
    head: ClassVar[str] = "language_model"
    """The kind of head that answers."""

    def writes(self, model: Model) -> bool:
        """True if the answer is what the model decodes."""
        return self.needs != "anything"

    def model_problems(self, model: Model) -> list[Problem]:
        """What else of the model does not fit the task, by its path in the model."""
        return []


class NextToken(Task, kind="next_token"):
    """Language modelling: -Σ log p(x_i | x_<i)."""

    needs: ClassVar[Needs] = "causal"


class SequenceToSequence(Task):
    """A text from a text, learned with teacher forcing: -Σ log p(y_i | y_<i, x).

    With an encoder, x is its input. Without, x and y are one sequence, and a mask with a prefix lets x see all of itself (Raffel et al. 2020).
    """

    label_smoothing: float = Field(
        default=0.1, ge=0, lt=1, description="share of the target's probability that is spread over the vocabulary"
    )
    begin: Seq[Annotated[str, Field(min_length=1)]] = Field(
        default=(), description="special tokens that what is written begins with; default: the tokenizer's mark of a beginning"
    )
    framed: bool = Field(
        default=False, description="the source stands in what the tokenizer puts round a text, if it does; else its end is marked"
    )

    reads: ClassVar[Reads] = "examples"
    needs: ClassVar[Needs] = "decodes"
    takes_encoder: ClassVar[bool] = True


class Translation(SequenceToSequence, kind="translation"):
    """Sentence pairs; measured by sacreBLEU. Columns ``source`` and ``target``."""


class Summarization(SequenceToSequence, kind="summarization"):
    """Texts and their summaries; measured by ROUGE against all summaries that a text has. Columns ``source`` and ``target``."""


class Classification(Task, kind="classification"):
    """One label a text: -log p(label | text); measured by accuracy and macro F1. Columns ``text`` and ``label``."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "classification"


class TokenClassification(Task, kind="token_classification"):
    """A tag for each word: -Σ log p(tag | sentence); measured by entity F1. Columns ``words`` and ``tags``."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "tokens"


class QuestionAnswering(Task, kind="question_answering"):
    """The stretch of a context that answers a question: -log p(first token) - log p(last token) (Rajpurkar et al. 2016; Devlin et al. 2019).

    Measured by SQuAD's exact match and F1. Columns ``context``, ``question`` and ``answers``.
    """

    stride: int = Field(
        default=64, gt=0, description="tokens from one window of a long context to the next; at most a window, so that all is read"
    )
    max_answer_tokens: int = Field(default=30, gt=0, description="the longest answer that is given")
    max_question_tokens: int = Field(default=48, gt=0, description="what a question has beyond them is not read")
    no_answer: bool | None = Field(
        default=None, description="whether a question may have none (Rajpurkar et al. 2018); default: whether one of the training part has"
    )

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "spans"


class Regression(Task, kind="regression"):
    """A number for a text: ((y - mean) / deviation - f(text))²; measured by RMSE, MAE and Pearson's r. Columns ``text`` and ``value``."""

    mean: float | None = Field(default=None, description="default: that of the training values")
    deviation: float | None = Field(default=None, gt=0, description="the unit in which the model counts; default: the training values' own")

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "regression"


class MaskedTokens(Task, kind="masked_tokens"):
    """Some tokens are hidden, and the model says which they were: -Σ log p(x_i | x with the targets hidden) (Devlin et al. 2019, "BERT").

    Of the targets a share ``replaced`` becomes the mask, a share ``random`` any token, and the rest stays.
    """

    rate: float = Field(default=0.15, gt=0, le=1, description="share of the tokens, or of the words, that are targets")
    replaced: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)
    whole_words: bool = Field(default=False, description="the tokens of a word are targets together")

    def problems(self) -> list[Problem]:
        if self.replaced + self.random <= 1 + 1e-9:
            return []
        return [Problem(("random",), f"{self.random} and replaced {self.replaced} are shares of the targets, and their sum is at most 1")]


class Restoration(Task):
    """A damaged text is read, and what is missing, or all of it, is written."""

    needs: ClassVar[Needs] = "decodes"
    takes_encoder: ClassVar[bool] = True


class SpanCorruption(Restoration, kind="span_corruption"):
    """Spans are cut out, a sentinel marks each gap, and the model writes what was cut (Raffel et al. 2020, "T5")."""

    density: float = Field(default=0.15, gt=0, lt=1, description="share of the tokens that are cut")
    mean_length: float = Field(default=3.0, ge=1, description="tokens of a span")


class Noise(Part, slot=True):
    """One way to damage a text."""


class TokenMasking(Noise, kind="token_masking"):
    """A share of the tokens becomes the mask."""

    rate: float = Field(default=0.3, ge=0, le=1)


class TokenDeletion(Noise, kind="token_deletion"):
    """A share of the tokens is left out."""

    rate: float = Field(default=0.3, ge=0, le=1)


class TextInfilling(Noise, kind="text_infilling"):
    """Spans of Poisson lengths, each replaced by one mask; together they are a share of the tokens."""

    rate: float = Field(default=0.3, ge=0, le=1)
    mean_length: float = Field(default=3.0, ge=1)


class SentencePermutation(Noise, kind="sentence_permutation"):
    """The sentences in any order."""


class DocumentRotation(Noise, kind="document_rotation"):
    """The text begins at any of its tokens, and what stood before it follows at the end."""


class Denoising(Restoration, kind="denoising"):
    """A text is damaged in each of these ways in turn, and the model writes the whole text (Lewis et al. 2020, "BART")."""

    noises: Seq[Noise] = Field(default=(SentencePermutation(), TextInfilling()), min_length=1)


class Permutation(Task, kind="permutation"):
    """Tokens are predicted one after another in a random order, each from those before it in the order (Yang et al. 2019, "XLNet")."""

    rate: float = Field(default=1 / 6, gt=0, le=1, description="share of the tokens that are predicted, the last ones of the order")
    max_span: int = Field(default=5, ge=1, description="most tokens that are chosen in one piece")

    def model_problems(self, model: Model) -> list[Problem]:
        path = model.first_branch(lambda branch: branch.mixes and not (isinstance(branch, Attention) and isinstance(branch.mask, Full)))
        if not path:
            return []
        return [
            Problem(
                path,
                "the task 'permutation' says itself which token sees which; list 'attention(mask=full)' and no other branch that mixes positions",
            )
        ]


class WordVectors(Task):
    """One vector a word, learned from the words around it by negative sampling (Mikolov et al. 2013).

    The vectors are the front end's table, and those of the predicted words the head's; a stack between them has no part in it.
    """

    window: int = Field(default=5, ge=1, description="most words on either side; for each word a number from 1 to it is drawn")
    negatives: int = Field(default=5, ge=1, description="random words beside each predicted one")
    power: float = Field(default=0.75, ge=0, description="negatives are drawn in proportion to their frequency to this power")
    threshold: float | None = Field(
        default=1e-3, gt=0, le=1, description="words with a larger share of the text are often left out; null keeps all"
    )

    def model_problems(self, model: Model) -> list[Problem]:
        found: list[Problem] = []
        if model.blocks:
            found.append(Problem(("blocks",), f"the task {self.kind!r} learns vectors of words alone; give model.blocks=[]"))
        if model.tied:
            found.append(
                Problem(("head", "tied"), f"the task {self.kind!r} has a second table for the words that are predicted; give false")
            )
        return found


class SkipGram(WordVectors, kind="skip_gram"):
    """-Σ over pairs of neighbours (i, o) log σ(u_o·v_i) + Σ over negatives n log σ(-u_n·v_i)."""


class CBOW(WordVectors, kind="cbow"):
    """As skip-gram with v̄, the mean vector of all neighbours, in the place of v_i: one prediction a word."""


class Generated(Task):
    """A task that draws its own data."""

    reads: ClassVar[Reads] = "nothing"


class Sorting(Generated, kind="sorting"):
    """Numbers are put in order.

    A model in which all positions see each other answers at each position k with the k-th smallest; one that decodes writes the sorted
    numbers after those that it has read.
    """

    length: int = Field(default=10, ge=1, description="how many numbers a row has in training")
    high: int = Field(default=100, ge=2, description="numbers are 0 to high - 1")
    longer: Seq[int] = Field(default=(2, 4), description="rows this many times as long are examined too")

    head: ClassVar[str] = "tokens"

    def writes(self, model: Model) -> bool:
        return model.decodes


class Recall(Generated, kind="recall"):
    """A symbol is shown, other tokens follow, and at the end the model says the symbol; what a model remembers, by distance."""

    distances: Seq[int] = Field(default=(1, 2, 4, 8, 16, 32, 64), min_length=1, description="how many tokens stand between; one a batch")
    symbols: int = Field(default=16, ge=2)
    fillers: int = Field(default=16, ge=1)

    head: ClassVar[str] = "classification"

    def problems(self) -> list[Problem]:
        wrong = next((distance for distance in self.distances if distance < 0), None)
        return [] if wrong is None else [Problem(("distances",), f"{wrong} given, but a distance is at least 0")]
