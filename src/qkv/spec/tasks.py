"""Specs of tasks: training objective, required data, required model properties and head."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.spec.recipes.chat_tasks import Chat as Chat
from qkv.spec.recipes.multimodal_tasks import Matching as Matching
from qkv.spec.recipes.preference_tasks import Preference as Preference
from qkv.spec.recipes.signal_tasks import Autoencoding as Autoencoding
from qkv.spec.recipes.signal_tasks import EdgePrediction as EdgePrediction
from qkv.spec.recipes.signal_tasks import Forecasting as Forecasting
from qkv.spec.recipes.signal_tasks import NextPatch as NextPatch
from qkv.spec.recipes.signal_tasks import NodeClassification as NodeClassification
from qkv.spec.recipes.signal_tasks import Speech as Speech
from qkv.spec.recipes.sound_tasks import ContrastivePretraining as ContrastivePretraining
from qkv.spec.recipes.sound_tasks import Transcription as Transcription
from qkv.spec.recipes.task import Needs, Reads, Task


class NextToken(Task, kind="next_token"):
    """Language modelling: -Σ log p(x_i | x_<i), of text, or of the codes of images (processor ``image_codes``)."""

    sized_by_tokenizer = True
    reads_signals: ClassVar[bool] = True
    needs: ClassVar[Needs] = "causal"

    def model_problems(self, model: Model) -> list[Problem]:
        processor = model.frontend.processor
        if processor is None or processor.makes_codes:
            return []
        sentence = (
            f"the task {self.kind!r} reads tokens, but the front end {model.frontend.kind!r} reads {processor.kind}"
        )
        return [Problem(("frontend",), f"{sentence}; use 'text', or 'image_codes' for images")]


class SequenceToSequence(Task):
    """Base class of sequence-to-sequence tasks with teacher forcing: -Σ log p(y_i | y_<i, x).

    With an encoder, x is its input. Without, x and y are one sequence; a prefix mask makes x bidirectional (Raffel et
    al. 2020).
    """

    label_smoothing: float = Field(
        default=0.1, ge=0, lt=1, description="probability mass spread uniformly over the vocabulary"
    )
    begin: Seq[Annotated[str, Field(min_length=1)]] = Field(
        default=(),
        description="special tokens at the beginning of the target; default: the tokenizer's beginning-of-sequence "
        "token",
    )
    framed: bool = Field(
        default=False,
        description="add the tokenizer's special tokens to the source; if false or if it has none, "
        "add an end token only",
    )
    prefix: str = Field(default="", description="text before every source, such as 'summarize: ' of T5")
    windows: int = Field(
        default=1,
        gt=0,
        description="maximum number of windows, split at ends of sentences, in which a prediction reads a long source; "
        "their outputs are joined",
    )

    reads: ClassVar[Reads] = "examples"
    needs: ClassVar[Needs] = "decodes"
    joins_inputs: ClassVar[bool] = True
    takes_encoder: ClassVar[bool] = True

    def published(self) -> Self:
        return self.changed(windows=256)


class Translation(SequenceToSequence, kind="translation"):
    """Translation of sentence pairs, evaluated by sacreBLEU. A table has the columns ``source`` and ``target``."""


class Summarization(SequenceToSequence, kind="summarization"):
    """Summarisation; metric: ROUGE against all reference summaries of a text. Columns ``source`` and ``target``."""


class SignalToText(SequenceToSequence):
    """Base class of tasks that write a text about a signal, which the encoder reads: -Σ log p(y_i | y_<i, signal)."""

    reads_signals: ClassVar[bool] = True
    joins_inputs: ClassVar[bool] = False

    @abstractmethod
    def misfit(self, processor: type[Processor] | None) -> str:
        """Return why an encoder of the signals of ``processor`` does not fit; empty if it does."""

    def model_problems(self, model: Model) -> list[Problem]:
        sentence = self.misfit(model.encoder and model.encoder.frontend.processor)
        return [Problem(("encoder",), f"the task {self.kind!r} needs {sentence}")] if sentence else []


class SpeechToText(SignalToText, kind="speech_to_text"):
    """Transcription of speech by an encoder–decoder: -Σ log p(y_i | y_<i, sound) (Whisper, Radford et al. 2022).

    Metrics: word and character error rate. Columns: the sound and ``text``.
    """

    whole_rate_factor = 0.2  # 1e-5 at a width of 768, as published for Whisper; more lets it forget other speech

    def misfit(self, processor: type[Processor] | None) -> str:
        if processor is not None and processor.of_sounds:
            return ""
        return "an encoder that reads sound; give one with the front end mel_convolutions or wave_convolutions"


class Captioning(SignalToText, kind="captioning"):
    """Description of an image, or of another signal, by an encoder–decoder (Vinyals et al. 2015).

    Without an encoder, the image and other inputs, such as a question, stand before the text in one row. Metrics: BLEU
    and CIDEr against all texts of the image. Columns: the image and ``text``.
    """

    joins_inputs: ClassVar[bool] = True

    def misfit(self, processor: type[Processor] | None) -> str:
        if processor is not None:
            return ""
        return (
            "an encoder that reads images or another signal, or several inputs; give an encoder with a front end such "
            "as patches, or data.inputs"
        )

    def model_problems(self, model: Model) -> list[Problem]:
        return [] if model.frontend.inputs_read and model.encoder is None else super().model_problems(model)


ClassWeights = Literal["none", "balanced"] | dict[str, Annotated[float, Field(gt=0)]]
"""Weights by label in the loss, or the name of a rule that chooses them."""
_WEIGHTS = (
    "weights of labels in the training loss: none; balanced: n / (k n_c) for a label with n_c of n targets and k "
    "labels; or a weight by label, 1 for all others"
)
Begin = Seq[Annotated[str, Field(min_length=1)]]
"""Special tokens at the beginning of the input of a decoder."""
_BEGIN = (
    "in an encoder–decoder, special tokens at the beginning of the decoder's input, which is the text some tokens "
    "later; default: the task has no encoder"
)
_WINDOWS = "maximum number of windows into which a long text is split; their outputs are averaged"


class Classification(Task, kind="classification"):
    """Text classification: -log p(label | text); metrics: accuracy and macro F1. Columns ``text`` and ``label``."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: ClassWeights = Field(default="none", description=_WEIGHTS)
    windows: int = Field(default=1, gt=0, description=_WINDOWS)
    begin: Begin = Field(default=(), description=_BEGIN)

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    joins_inputs: ClassVar[bool] = True
    head: ClassVar[str] = "classification"

    def reads_source(self) -> bool:
        return bool(self.begin)


class MultiLabel(Task, kind="multilabel"):
    """Classification with several labels per text: -Σ_c log p(label c present or absent | text).

    Metrics: micro and macro F1, subset accuracy. Columns ``text`` and ``labels``.
    """

    threshold: float = Field(default=0.5, gt=0, lt=1, description="minimum probability of a predicted label")
    windows: int = Field(default=1, gt=0, description=_WINDOWS)
    begin: Begin = Field(default=(), description=_BEGIN)

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    joins_inputs: ClassVar[bool] = True
    head: ClassVar[str] = "labels"

    def reads_source(self) -> bool:
        return bool(self.begin)


class TokenClassification(Task, kind="token_classification"):
    """Tagging of words: -Σ log p(tag | sentence); metric: entity F1. Columns ``words`` and ``tags``."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    class_weights: ClassWeights = Field(default="none", description=_WEIGHTS)

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "tokens"
    reads_words: ClassVar[bool] = True

    def model_problems(self, model: Model) -> list[Problem]:
        if model.head.weighs or not (self.label_smoothing or self.class_weights != "none"):
            return []
        name, off = ("class weights", "none") if self.class_weights != "none" else ("label smoothing", "0")
        sentence = f"the loss of the head {model.head.kind!r} has no {name}"
        return [Problem(("head",), f"{sentence}; give task.{name.replace(' ', '_')}={off}, or model.head=tokens")]


class QuestionAnswering(Task, kind="question_answering"):
    """Extractive question answering: -log p(first token) - log p(last token).

    See Rajpurkar et al. 2016, Devlin et al. 2019. Metrics: SQuAD's exact match and F1. Columns ``context``,
    ``question`` and ``answers``.
    """

    stride: int = Field(
        default=64,
        gt=0,
        description="tokens between the starts of windows over a long context; "
        "at most the window, so that none are skipped",
    )
    max_answer_tokens: int = Field(default=30, gt=0, description="maximum length of predicted answers")
    max_question_tokens: int = Field(default=48, gt=0, description="longer questions are truncated")
    no_answer: bool | None = Field(
        default=None,
        description="allow unanswerable questions (Rajpurkar et al. 2018); default: true if the training part has any",
    )

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "spans"


class Regression(Task, kind="regression"):
    """Text regression: ((y - mean) / deviation - f(text))².

    Metrics: RMSE, MAE and Pearson's r. Columns ``text`` and ``value``.
    """

    mean: float | None = Field(default=None, description="mean of the targets; default: that of the training set")
    deviation: float | None = Field(
        default=None, gt=0, description="standard deviation of the targets; default: that of the training set"
    )
    windows: int = Field(default=1, gt=0, description=_WINDOWS)
    begin: Begin = Field(default=(), description=_BEGIN)

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    joins_inputs: ClassVar[bool] = True
    head: ClassVar[str] = "regression"

    def reads_source(self) -> bool:
        return bool(self.begin)

    def published(self) -> Self:
        return self.changed(mean=0.0, deviation=1.0)  # the outputs are in the original units


class MaskedTokens(Task, kind="masked_tokens"):
    """Masked language modelling: -Σ log p(x_i | x with the targets masked) (BERT, Devlin et al. 2019).

    Of the targets, a fraction ``replaced`` becomes the mask token, a fraction ``random`` a random token; the rest is
    unchanged.
    """

    rate: float = Field(default=0.15, gt=0, le=1, description="fraction of tokens, or of words, that are targets")
    replaced: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)
    whole_words: bool = Field(default=False, description="select all tokens of a word together")

    def problems(self) -> list[Problem]:
        if self.replaced + self.random <= 1 + 1e-9:
            return []
        return [
            Problem(
                ("random",),
                f"{self.random} and replaced {self.replaced} are fractions of the targets, but their sum is above 1",
            )
        ]


class Restoration(Task):
    """Base class of denoising objectives: from a corrupted text, the model generates the removed or all tokens."""

    needs: ClassVar[Needs] = "decodes"
    takes_encoder: ClassVar[bool] = True


class SpanCorruption(Restoration, kind="span_corruption"):
    """Span corruption: spans are replaced by sentinels, and the model generates them (T5, Raffel et al. 2020)."""

    density: float = Field(default=0.15, gt=0, lt=1, description="fraction of tokens in spans")
    mean_length: float = Field(default=3.0, ge=1, description="mean tokens per span")


class Noise(Part, slot=True):
    """Base class of text corruptions, the steps of ``Denoising``."""


class TokenMasking(Noise, kind="token_masking"):
    """Text corruption: replaces a fraction ``rate`` of the tokens by the mask token."""

    rate: float = Field(default=0.3, ge=0, le=1)


class TokenDeletion(Noise, kind="token_deletion"):
    """Text corruption: deletes a fraction ``rate`` of the tokens."""

    rate: float = Field(default=0.3, ge=0, le=1)


class TextInfilling(Noise, kind="text_infilling"):
    """Text corruption: replaces spans of Poisson lengths, a fraction ``rate`` of the tokens, by one mask token each."""

    rate: float = Field(default=0.3, ge=0, le=1)
    mean_length: float = Field(default=3.0, ge=1)


class SentencePermutation(Noise, kind="sentence_permutation"):
    """Text corruption: shuffles the sentences of each text."""


class DocumentRotation(Noise, kind="document_rotation"):
    """Text corruption: rotates each text to begin at a random token."""


class Denoising(Restoration, kind="denoising"):
    """Denoising: corrupt a text by all ``noises`` in turn, generate the original (BART, Lewis et al. 2020)."""

    noises: Seq[Noise] = Field(default=(SentencePermutation(), TextInfilling()), min_length=1)


class Permutation(Task, kind="permutation"):
    """Permutation language modelling: predict tokens in a random order, each from earlier ones (XLNet, 2019)."""

    rate: float = Field(
        default=1 / 6, gt=0, le=1, description="fraction of tokens that are predicted, the last in the order"
    )
    max_span: int = Field(default=5, ge=1, description="maximum tokens of a contiguous target span")

    def model_problems(self, model: Model) -> list[Problem]:
        path = model.first_branch(lambda branch: branch.mixes and not branch.only_visible_keys)
        if not path:
            return []
        return [
            Problem(
                path,
                "the task 'permutation' provides its own masks; list 'attention(mask=full)' and no other branch that "
                "mixes positions",
            )
        ]


class WordVectors(Task):
    """Base class of word2vec objectives: word vectors trained with negative sampling (Mikolov et al. 2013).

    Input vectors are the front end's table, output vectors the head's; there is no stack between them.
    """

    window: int = Field(
        default=5, ge=1, description="maximum words on each side; for each word the window is sampled from 1 to this"
    )
    negatives: int = Field(default=5, ge=1, description="negative samples per predicted word")
    power: float = Field(default=0.75, ge=0, description="negatives are sampled in proportion to frequency ** power")
    threshold: float | None = Field(
        default=1e-3,
        gt=0,
        le=1,
        description="subsampling threshold: more frequent words are dropped at random; null keeps all",
    )

    def model_problems(self, model: Model) -> list[Problem]:
        problems: list[Problem] = []
        if model.blocks:
            problems.append(
                Problem(("blocks",), f"the task {self.kind!r} trains word vectors without blocks; give model.blocks=[]")
            )
        if model.tied:
            problems.append(
                Problem(("head", "tied"), f"the task {self.kind!r} has a separate table of output vectors; give false")
            )
        return problems


class SkipGram(WordVectors, kind="skip_gram"):
    """Skip-gram: -Σ over neighbour pairs (i, o) of [log σ(u_o·v_i) + Σ over negatives n of log σ(-u_n·v_i)].

    v: input vectors; u: output vectors.
    """


class CBOW(WordVectors, kind="cbow"):
    """Continuous bag of words: skip-gram with the mean v̄ of neighbours' vectors for v_i; one prediction per word."""


class Generated(Task):
    """Base class of tasks that generate their own data, such as sorting."""

    reads: ClassVar[Reads] = "nothing"


class Sorting(Generated, kind="sorting"):
    """Sorting numbers.

    A bidirectional model predicts the k-th smallest number at position k; a decoder generates the sorted numbers after
    the input.
    """

    length: int = Field(default=10, ge=1, description="numbers per row in training")
    high: int = Field(default=100, ge=2, description="numbers are 0 to high - 1")
    longer: Seq[int] = Field(default=(2, 4), description="evaluate on rows this many times as long, too")

    head: ClassVar[str] = "tokens"

    def writes(self, model: Model) -> bool:
        return model.decodes

    def model_problems(self, model: Model) -> list[Problem]:
        if not model.decodes or model.head.kind == self.head:
            return []
        sentence = f"a model that generates one number at a time has the head {self.head!r}, not {model.head.kind!r}"
        return [Problem(("head",), sentence)]


class Subleq(Generated, kind="subleq"):
    """State of a SUBLEQ computer after one instruction, from its memory of 2^bits cells and its program counter.

    A model that sees all positions predicts the next value of each. What it learns, weights set by hand compute exactly
    (Giannou et al. 2023).
    """

    bits: int = Field(default=3, ge=2, le=8, description="bits of a word; the memory has 2^bits cells")
    instructions: Seq[int] = Field(
        default=(4, 16), description="evaluate after these numbers of instructions too, each on the model's last row"
    )

    head: ClassVar[str] = "tokens"

    @property
    def size(self) -> int:
        """Number of cells."""
        return 1 << self.bits

    def problems(self) -> list[Problem]:
        wrong = next((count for count in self.instructions if count < 1), None)
        return [] if wrong is None else [Problem(("instructions",), f"{wrong} given, but at least 1 is carried out")]

    def model_problems(self, model: Model) -> list[Problem]:
        if not model.decodes:
            return []
        return [Problem(("blocks",), "the next state of a cell depends on later ones; use branches that see them all")]


class Recall(Generated, kind="recall"):
    """Recall a symbol after a number of filler tokens; accuracy by this distance measures a model's memory.

    ``symbols``: number of different symbols.   ``fillers``: number of different filler tokens.
    """

    distances: Seq[int] = Field(
        default=(1, 2, 4, 8, 16, 32, 64),
        min_length=1,
        description="numbers of filler tokens between symbol and question; one per batch",
    )
    symbols: int = Field(default=16, ge=2)
    fillers: int = Field(default=16, ge=1)

    head: ClassVar[str] = "classification"

    def problems(self) -> list[Problem]:
        wrong = next((distance for distance in self.distances if distance < 0), None)
        return [] if wrong is None else [Problem(("distances",), f"{wrong} given, but a distance is at least 0")]


class BySize(Generated):
    """Base class of generated tasks whose rows have one of several sizes."""

    sizes: Seq[int] = Field(min_length=1, description="sizes of training rows; one per batch")
    longer: Seq[int] = Field(default=(), description="further sizes that are evaluated, such as longer ones")

    head: ClassVar[str] = "tokens"

    def row_length(self, size: int) -> int:
        """Return the number of positions of a row of this size."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        wrong = [(field, size) for field in ("sizes", "longer") for size in getattr(self, field) if size < 1]
        return [Problem((field,), f"{size} given, but a size is at least 1") for field, size in wrong[:1]]

    def model_problems(self, model: Model) -> list[Problem]:
        if model.causal:
            return []
        return [Problem(("blocks",), "a model that sees later positions reads the answers; use causal branches")]


class AssociativeRecall(BySize, kind="associative_recall"):
    """Associative recall: values by their keys, after all pairs; measures how many pairs a decoding state can store.

    ``sizes``: numbers of pairs. A row has four positions per pair.
    """

    sizes: Seq[int] = Field(default=(4, 8, 16, 32), min_length=1, description="numbers of pairs; one per batch")
    keys: int = Field(default=64, ge=1, description="number of different keys")
    values: int = Field(default=64, ge=2, description="number of different values")

    def row_length(self, size: int) -> int:
        return 4 * size

    def problems(self) -> list[Problem]:
        most = max((*self.sizes, *self.longer))
        if most <= self.keys:
            return super().problems()
        return [Problem(("keys",), f"{self.keys} different keys are fewer than {most} pairs of a row; give more")]


class Copying(BySize, kind="copying"):
    """Copying of a row of symbols; measures how many symbols a decoding state can store.

    ``sizes``: numbers of symbols.
    """

    sizes: Seq[int] = Field(default=(8, 16, 32, 64), min_length=1, description="numbers of symbols; one per batch")
    symbols: int = Field(default=32, ge=2, description="number of different symbols")

    def row_length(self, size: int) -> int:
        return 2 * size
