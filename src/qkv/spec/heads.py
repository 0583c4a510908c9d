"""Specs of output heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import BeforeValidator, Field

from qkv.spec.base import Part, Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import WIDEST, Frontend
from qkv.spec.models.forecasts import Forecast, Point
from qkv.spec.parts import Activation, LayerNorm, NoNorm, Norm
from qkv.system.errors import nearest, quoted

PoolingName = Literal[
    "first", "last", "mean", "mean_first", "mean_rest", "max", "mean_sqrt_len", "weighted_mean", "attention"
]


class Head(Part, slot=True):
    """Base class of heads: the output layer that maps the final hidden states to the logits or values of a task."""

    per_position: ClassVar[bool] = False
    """True if it has outputs for each position, not for the row as a whole."""
    predicts_tokens: ClassVar[bool] = False
    """True if its outputs are logits of tokens."""
    pairs_positions: ClassVar[bool] = False
    """True if its outputs are those of pairs of positions, such as edges of a graph."""
    pools: ClassVar[bool] = False
    """True if it pools the vectors of a row to one vector."""
    instead_of: ClassVar[str] = ""
    """Kind of head that it can replace in tasks, with outputs and targets of the same shape; empty for none."""
    fixed_rows: ClassVar[bool] = False
    """True if it needs rows of a fixed length, such as a head that concatenates all positions of a window."""
    weighs: ClassVar[bool] = True
    """True if its loss is a sum over targets, each of which can have a weight and a smoothed label."""
    writes_text: ClassVar[bool] = False
    """True if its classes are the tokens of the target's tokenizer."""
    reads_memory: ClassVar[bool] = False
    """True if it reads the output of the encoder, besides that of the blocks."""

    @property
    def serves(self) -> str:
        """Kind of head that tasks require where this head can be used: the kind that it replaces, or its own kind."""
        return self.instead_of or self.kind

    @property
    def leading_read(self) -> int:
        """Number of first positions that the head treats separately, such as a class token; 0 if all are alike."""
        return 0

    @property
    def shares_table(self) -> bool:
        """True if the output matrix is the token embedding table (tied embeddings)."""
        return False

    def table_width(self, width: int) -> int:
        """Return the number of columns of the output matrix in a model of ``width`` features."""
        return width

    @property
    def classes(self) -> int | None:
        """Number of classes; 0 for outputs that are not classes; None until the data is known."""
        return 0

    def sized(self, num_classes: int) -> Self:
        """Return a copy with the data's number of classes filled in. Raises ``SpecError`` if the spec has fewer."""
        return self

    def unsized(self) -> Self:
        """Return a copy without the number of classes, which depends on the data set."""
        return self

    def reading(self, frontend: Frontend) -> Self:
        """Return a copy with the sizes that ``frontend`` determines.

        Raises ``SpecError`` if the spec's sizes differ.
        """
        return self

    def beside(self, memory_width: int) -> Self:
        """Return a copy for an encoder whose vectors have ``memory_width`` features."""
        return self

    def memory_problems(self, memory_width: int) -> list[Problem]:
        """Return the errors in these settings for an encoder whose vectors have ``memory_width`` features."""
        return []


class LanguageModelHead(Head, kind="language_model"):
    """Language model head: logits = scale · f(x) W^T + bias, optionally soft-capped: cap · tanh(logits / cap).

    f is the identity, or with ``transform`` norm(φ(x W_t + b_t)) (BERT, Devlin et al. 2019; without b_t in
    ModernBERT), of ``transform_width`` features (ALBERT, Lan et al. 2020). With ``transform_hidden`` another layer of
    that many features comes first: norm(φ(φ(x W_h + b_h) W_t + b_t)) (UltraBERT, 2026).
    """

    per_position = predicts_tokens = True
    tied: bool = Field(default=True, description="share W with the token embeddings")
    bias: bool = False
    softcap: float | None = Field(default=None, gt=0)
    transform: Activation | None = Field(
        default=None, description="activation φ of a dense layer before the logits; default: no such layer"
    )
    scale: float = Field(default=1.0, gt=0, description="factor of f(x); width ** -0.5 in T5 with a tied head")
    norm: Norm = Field(default=LayerNorm(), description="norm after the transform; unused without one")
    transform_bias: bool = True
    transform_width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="features after the transform; default: the model's width"
    )
    transform_hidden: int | None = Field(
        default=None, gt=0, le=WIDEST, description="features of a layer before the transform; default: no such layer"
    )

    @property
    def shares_table(self) -> bool:
        return self.tied

    def table_width(self, width: int) -> int:
        return self.transform_width or width

    def problems(self) -> list[Problem]:
        if self.transform_width and self.transform is None:
            return [Problem(("transform_width",), "there is no transform that would change the width; give transform")]
        if self.transform_hidden and self.transform is None:
            return [Problem(("transform_hidden",), "there is no transform that would follow the layer; give transform")]
        return _no_batch(self.norm)


def _no_batch(norm: Norm) -> list[Problem]:
    if not norm.over_batch:
        return []
    return [
        Problem(("norm",), "a head normalises each vector separately; use layer_norm, rms_norm or none, not batch_norm")
    ]


class Classes(Head):
    """Base class of classification heads."""

    num_classes: int | None = Field(default=None, gt=0, description="default: number of labels or tags in the data")

    @property
    def classes(self) -> int | None:
        return self.num_classes

    def sized(self, num_classes: int) -> Self:
        if self.num_classes is None:
            return self.changed(num_classes=num_classes)
        if self.num_classes < num_classes:
            few = f"{self.num_classes} classes are fewer than the {num_classes} labels of the data"
            raise SpecError([Problem(("num_classes",), f"{few}; leave the key out to take their number")])
        return self

    def unsized(self) -> Self:
        return self.changed(num_classes=None)


def _check_poolings(value: Any) -> Any:
    """Validate a pooling or a list of poolings. Raises ``ValueError``, as pydantic requires, for an unknown name."""
    several: list[Any] = [*cast("Iterable[Any]", value)] if isinstance(value, list | tuple) else [value]
    if not several:
        raise ValueError("the list of poolings is empty; name at least one")
    unknown = next((name for name in several if name not in get_args(PoolingName)), None)
    if unknown is not None:
        raise ValueError(f"there is no pooling {quoted(unknown)}; {nearest(str(unknown), get_args(PoolingName))}")
    return value if isinstance(value, str) else tuple(several)


class Pooled(Head):
    """Base class of sequence-level heads, which pool the vectors of unpadded positions to one.

    pooling: ``first`` (BERT's CLS), ``last``, ``mean``, ``mean_first`` and ``mean_rest``: mean of the first positions,
    by default of one, and of all others, ``max``,
    ``mean_sqrt_len``: Σ x_i / √n, ``weighted_mean``: Σ i x_i / Σ i, or ``attention``: Σ_i softmax_i(w·x_i) x_i with
    learned w. The results of several poolings are concatenated.
    """

    pools = True
    pooling: Annotated[PoolingName | tuple[PoolingName, ...], BeforeValidator(_check_poolings)] = "mean"

    @property
    def poolings(self) -> tuple[PoolingName, ...]:
        """Names of the poolings, one or several."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    @property
    def leading_read(self) -> int:
        return int("first" in self.poolings)


class PooledRest(Pooled):
    """Base class of heads whose poolings ``mean_first`` and ``mean_rest`` are of the first ``leading`` positions, by
    default one, and of the others.
    """

    leading: int = Field(
        default=1,
        ge=1,
        le=2000,
        description="first positions, which mean_rest leaves out and mean_first reads",
    )


class Hidden(Head):
    """Base class of heads with output z W^T + b and an optional hidden layer.

    z = dropout(norm(x)), or with ``hidden`` z = dropout(norm(φ(x W_h + b_h))); x is the final hidden state, pooled or
    not.
    """

    hidden: int | None = Field(default=None, gt=0, description="width of the hidden layer; default: no hidden layer")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    activation: Activation = Field(default="tanh", description="activation φ of the hidden layer")
    norm: Norm = Field(default=NoNorm(), description="norm after the hidden layer, or of x without one")
    hidden_bias: bool = True
    bias: bool = True

    def problems(self) -> list[Problem]:
        return _no_batch(self.norm)


# The order of the bases decides the order of the fields in short forms: classification(3) has three classes.
class ClassificationHead(PooledRest, Hidden, Pooled, Classes, kind="classification"):
    """Sequence classification: logits = z W^T + b per sequence, with z as in ``Hidden`` from the pooled vector.

    Pooling ``first`` with a tanh layer as wide as the model is BERT's pooler and classifier (Devlin et al. 2019).
    """


class DistilledHead(Classes, kind="distilled"):
    """Mean of two linear classifiers, on the first and the second position (DeiT, Touvron et al. 2021).

    logits = (x_0 W_0^T + b_0 + x_1 W_1^T + b_1) / 2: of the class token and of the distillation token.
    """

    instead_of = "classification"
    fixed_rows: ClassVar[bool] = True

    @property
    def leading_read(self) -> int:
        return 2


class LabelsHead(PooledRest, Hidden, Pooled, Classes, kind="labels"):
    """Several labels per sequence: one logit per label, as in ``ClassificationHead``; loss: binary cross-entropy."""


class RegressionHead(PooledRest, Hidden, Pooled, kind="regression"):
    """Sequence regression: y = z w + b per sequence; targets standardised over the training set; z as in ``Hidden``."""


class TokenHead(Hidden, Classes, kind="tokens"):
    """Token classification: logits = z W^T + b per position; z as in ``Hidden``."""

    per_position = True


class CRFHead(Hidden, Classes, kind="crf"):
    """Conditional random field over tags (Lafferty et al. 2001): logits as in ``TokenHead``, and scores of transitions.

    Loss: -log p(all tags of a row); prediction: the best sequence. Adjacent, first and last tags have learned scores.
    """

    per_position = True
    weighs = False
    instead_of = "tokens"


class CTCHead(Hidden, Classes, kind="ctc"):
    """Connectionist temporal classification (CTC, Graves et al. 2006): logits of the tokens and a blank per position.

    z as in ``Hidden``. Loss: -log of the sum over all alignments of the text with the positions, in which equal
    neighbours are merged and blanks removed. The blank is a class of its own, never a token of the text or padding.
    """

    per_position = True
    weighs = False
    writes_text = True
    blank: int | None = Field(default=None, ge=0, description="class of the blank; default: the one after the tokens")

    def sized(self, num_classes: int) -> Self:
        """Return a copy for a tokenizer of ``num_classes`` tokens. Raises ``SpecError`` if the spec has fewer."""
        if self.blank is not None:  # one of the ids of a published tokenizer
            return super().sized(max(num_classes, self.blank + 1))
        return super().sized(num_classes + 1).changed(blank=num_classes)

    def unsized(self) -> Self:
        return super().unsized().changed(blank=None)

    def problems(self) -> list[Problem]:
        if self.blank is not None and self.num_classes is not None and self.blank >= self.num_classes:
            sentence = f"{self.blank} given, but the {self.num_classes} classes are numbered from 0"
            return [*super().problems(), Problem(("blank",), f"{sentence}; give a smaller number")]
        return super().problems()


class SpanHead(Hidden, kind="spans"):
    """Span prediction: two logits z W^T + b per position, start and end (Devlin et al. 2019); z as in ``Hidden``."""

    per_position = True


class EdgesHead(Head, kind="edges"):
    """Edge prediction: logit Σ_k w_k h_ik h_jk + b of a pair of nodes (DistMult, Yang et al. 2015), h_i = W x_i.

    It is symmetric: h_i and h_j can be exchanged. Without pairs, each position is paired with itself.
    """

    per_position = True
    pairs_positions = True
    hidden: int | None = Field(default=None, gt=0, description="width of h; default: the width of x")
    dropout: float = Field(default=0.0, ge=0, lt=1)


class VectorsHead(Head, kind="vectors"):
    """Final hidden states themselves, without an output layer: a published model without a head."""

    per_position = True


class ForecastHead(Head, kind="forecast"):
    """Forecast of the next ``horizon`` values of each channel of a window: outputs z W^T + b in the given ``form``.

    z depends on ``over``. ``flatten``: the vectors of all positions, concatenated (PatchTST, Nie et al. 2023).
    ``mean``: their mean. ``channels``: the vector of each position, which is a channel (iTransformer, Liu et al. 2024).
    ``steps``: the vector of each position, which is a future step (decoder).
    """

    fixed_rows: ClassVar[bool] = True
    over: Literal["mean", "flatten", "channels", "steps"] = "mean"
    form: Forecast = Point()
    dropout: float = Field(default=0.0, ge=0, lt=1)
    horizon: int | None = Field(default=None, gt=0, description="future steps; default: the task's")
    channels: int | None = Field(default=None, gt=0, description="channels of a row; default: those of the data")
    positions: int | None = Field(default=None, gt=0, description="joined positions; default: those of a window")

    @property
    def per_position(self) -> bool:  # type: ignore[override]
        """True if it maps each position separately."""
        return self.over in ("channels", "steps")

    def of_window(self, horizon: int, channels: int, positions: int) -> Self:
        """Return a copy with the sizes of a window filled in. Raises ``SpecError`` if the spec has other sizes."""
        sizes = {"horizon": horizon, "channels": channels, "positions": positions}
        for name, size in sizes.items():
            if getattr(self, name) not in (None, size):
                sentence = f"{getattr(self, name)} given, but a window has {size}; leave the key out"
                raise SpecError([Problem((name,), sentence)])
        return self.changed(**sizes)

    def unsized(self) -> Self:
        return self.changed(horizon=None, channels=None, positions=None)


class OfImages(Head):
    """Base class of heads that output the pixel values of images, as large as the images that the front end reads."""

    fixed_rows: ClassVar[bool] = True
    per_position = True
    from_frontend: ClassVar[tuple[str, ...]] = ()
    """Names of the sizes that the front end determines."""

    def reading(self, frontend: Frontend) -> Self:
        sizes = {name: getattr(frontend, name, None) for name in self.from_frontend}
        for name, size in sizes.items():
            if size is not None and getattr(self, name) not in (None, size):
                sentence = f"{getattr(self, name)} given, but the front end has {size}; leave the key out"
                raise SpecError([Problem((name,), sentence)])
        return self.changed(**{name: size for name, size in sizes.items() if size is not None})

    def unsized(self) -> Self:
        return self.changed(**dict.fromkeys(self.from_frontend))


class CodebookHead(OfImages, kind="codebook"):
    """Vector quantisation and decoder of an image autoencoder (VQ-VAE, van den Oord et al. 2017).

    z = x W^T + b per position; q = the nearest of the ``codes`` code vectors e_k. The decoder maps q to pixels by
    transposed convolutions (``upsampling``) and a final convolution. Codes are moving averages of the vectors z nearest
    to them; a code that is used too rarely is replaced by a vector of the batch (Dhariwal et al. 2020). Gradients of q
    are passed to z.
    """

    codes: int = Field(default=512, gt=1, le=WIDEST, description="number of codes, K")
    code_width: int = Field(default=32, gt=0, le=WIDEST, description="features of a code")
    upsampling: Seq[Annotated[int, Field(gt=0, le=WIDEST)]] = Field(
        default=(), description="channels of transposed convolutions, each of which doubles height and width"
    )
    commitment: float = Field(default=0.25, ge=0, description="weight of (z - q)² in the loss")
    decay: float = Field(default=0.99, ge=0, lt=1, description="decay of the moving averages of codes, per batch")
    restart: float = Field(
        default=0.1, ge=0, description="moving average of uses per batch below which a code is replaced; 0: never"
    )
    grid: Seq[Annotated[int, Field(gt=0)]] | None = Field(
        default=None, min_length=2, max_length=2, description="rows and columns of codes; default: the front end's"
    )
    cell: int | None = Field(
        default=None, gt=0, description="pixels along each side of a code; default: the front end's"
    )
    height: int | None = Field(default=None, gt=0, description="pixels; default: those that the front end reads")
    width: int | None = Field(default=None, gt=0, description="pixels; default: those that the front end reads")
    channels: int | None = Field(default=None, gt=0, description="channels of the images; default: the front end's")

    from_frontend: ClassVar[tuple[str, ...]] = ("grid", "cell", "height", "width", "channels")

    def problems(self) -> list[Problem]:
        problems, scale = list[Problem](), 2 ** len(self.upsampling)
        if self.cell is not None and self.cell % scale:
            sentence = f"{len(self.upsampling)} doublings do not divide the {self.cell} pixels of a code"
            problems.append(Problem(("upsampling",), f"{sentence}; list fewer, or change the patches or the stem"))
        if self.grid and self.cell and self.height and self.width:
            covered = self.grid[0] * self.cell, self.grid[1] * self.cell
            if covered[0] < self.height or covered[1] < self.width:
                sentence = f"{self.height} × {self.width} pixels, but patches cover only {covered[0]} × {covered[1]}"
                advice = f"give images of a multiple of {self.cell} pixels (data.processor.height and width)"
                problems.append(Problem(("height",), f"{sentence}; {advice}"))
        return problems


class ContrastiveHead(Head, kind="contrastive"):
    """Vectors that tell quantised latent vectors apart, for pretraining on sounds (wav2vec 2.0, Baevski et al. 2020).

    c = W x + b per position of ``features`` features; a latent vector is quantised to q by one of ``codes`` codes in
    each of ``groups`` groups. p(q | c) ∝ exp(cos(c, q) / temperature) over the candidates.
    """

    per_position = True
    groups: int = Field(default=2, gt=0, le=64, description="codebooks G, whose codes are joined")
    codes: int = Field(default=320, gt=1, le=WIDEST, description="codes V of a codebook")
    code_width: int = Field(default=256, gt=0, le=WIDEST, description="features of the joined codes")
    features: int = Field(default=256, gt=0, le=WIDEST, description="features of c and q")
    temperature: float = Field(default=0.1, gt=0, description="κ, which the cosine is divided by")
    gumbel: Seq[Annotated[float, Field(gt=0)]] = Field(
        default=(2.0, 0.5), min_length=2, max_length=2, description="first and last temperature of the Gumbel noise"
    )
    decay: float = Field(default=0.999995, gt=0, le=1, description="factor of that temperature after each batch")
    latent_width: int | None = Field(default=None, gt=0, le=WIDEST, description="default: the front end's")

    def reading(self, frontend: Frontend) -> Self:
        channels = getattr(frontend, "channels", None)
        if not isinstance(channels, tuple) or not channels:
            return self
        if self.latent_width not in (None, channels[-1]):
            sentence = f"{self.latent_width} given, but the front end has {channels[-1]}; leave the key out"
            raise SpecError([Problem(("latent_width",), sentence)])
        return self.changed(latent_width=channels[-1])

    def unsized(self) -> Self:
        return self.changed(latent_width=None)

    def problems(self) -> list[Problem]:
        if self.code_width % self.groups:
            sentence = f"{self.code_width} features cannot be divided among {self.groups} groups"
            return [Problem(("code_width",), f"{sentence}; give a multiple")]
        return []


class MatchingHead(Pooled, kind="matching"):
    """Vectors of two inputs in one space, for matching them (CLIP, Radford et al. 2021; SigLIP, Zhai et al. 2023).

    a = W x + b of the pooled vectors x of the blocks, c = W_s x_s + b_s of those of the encoder, both divided by their
    norms; the score of a pair is s a·c + z with the learned scale s = exp(``scale``) ≤ 100 and offset z.
    """

    reads_memory = True
    features: int = Field(default=128, gt=0, le=WIDEST, description="features P of the common space")
    source_pooling: Annotated[PoolingName | tuple[PoolingName, ...], BeforeValidator(_check_poolings)] = Field(
        default="mean", description="pooling of the encoder's vectors"
    )
    bias: bool = Field(default=False, description="learn b and b_s")
    source_map: bool = Field(
        default=True, description="learn W_s and b_s; false: the encoder's vectors have P features already"
    )
    objective: Literal["softmax", "sigmoid"] = Field(
        default="softmax",
        description="softmax: cross-entropy over the rows of a batch, both ways (CLIP), z = 0; sigmoid: binary "
        "cross-entropy of each pair (SigLIP)",
    )
    source_width: int | None = Field(
        default=None, gt=0, le=WIDEST, description="features of the encoder's vectors; default: the model's width"
    )

    @property
    def source_poolings(self) -> tuple[PoolingName, ...]:
        """Names of the poolings of the encoder's vectors."""
        return (self.source_pooling,) if isinstance(self.source_pooling, str) else self.source_pooling

    def beside(self, memory_width: int) -> Self:
        return self.changed(source_width=memory_width)

    def memory_problems(self, memory_width: int) -> list[Problem]:
        pooled = memory_width * len(self.source_poolings)
        if self.source_map or pooled == self.features:
            return []
        sentence = f"vectors of {pooled} features are compared with others of {self.features}; set it to true"
        return [Problem(("source_map",), sentence)]


class MixtureHead(OfImages, kind="mixture"):
    """Mixture of K Gaussians with diagonal covariance over the vector at each position (GIVT, Tschannen et al. 2023).

    p(y) = Σ_k π_k Π_f N(y_f; μ_kf, σ_kf²), softmax weights π and σ = softplus, all x W^T + b. Loss: -log p(y).
    """

    components: int = Field(default=8, gt=0, le=WIDEST, description="number of Gaussians, K")
    features: int | None = Field(default=None, gt=0, description="values in a vector; default: the front end's")

    from_frontend: ClassVar[tuple[str, ...]] = ("features",)
