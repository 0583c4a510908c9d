"""The small parts that fill slots of a block: norms, residuals, positions and their scalings."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from qkv.spec.base import LARGEST, Part, Seq
from qkv.spec.errors import Problem

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu", "sigmoid", "tanh", "identity"]


class Norm(Part, slot=True):
    """How a sequence of vectors is normalised."""


class LayerNorm(Norm, kind="layer_norm"):
    """(x - mean) / sqrt(var + eps) * weight + bias, over the features of one position (Ba et al. 2016)."""

    eps: float = Field(default=1e-5, gt=0)
    bias: bool = True


class RMSNorm(Norm, kind="rms_norm"):
    """x / sqrt(mean(x²) + eps) * weight, over the features of one position (Zhang & Sennrich 2019).

    ``zero_centred``: times 1 + weight, the weight starting at 0, so that weight decay pulls the scale to 1 (Gemma, 2024).
    """

    eps: float = Field(default=1e-6, gt=0)
    weight: bool = True
    zero_centred: bool = Field(default=False, description="the scale is 1 + weight")

    def problems(self) -> list[Problem]:
        if self.zero_centred and not self.weight:
            return [Problem(("zero_centred",), "there is no weight to add 1 to; leave weight true, or zero_centred false")]
        return []


class BatchNorm(Norm, kind="batch_norm"):
    """(x - mean) / sqrt(var + eps) * weight + bias, per feature over all real tokens of the batch; running statistics in eval."""

    eps: float = Field(default=1e-5, gt=0)
    momentum: float = Field(default=0.1, gt=0, le=1)


class NoNorm(Norm, kind="none"):
    """x, unchanged."""


def _switched(value: Any) -> Any:
    return ("rms_norm" if value else "none") if isinstance(value, bool) else value


SwitchedNorm = Annotated[Norm, BeforeValidator(_switched, json_schema_input_type=bool | Norm)]
"""A norm that may also be written ``true``, for ``rms_norm``, and ``false``, for ``none``."""


class Residual(Part, slot=True):
    """How what a branch computed joins what went into it."""


class Add(Residual, kind="add"):
    """x + f(x)."""


class Scaled(Residual, kind="scaled"):
    """x + weight * f(x) with one learned weight a feature, starting at ``initial`` (LayerScale, Touvron et al. 2021)."""

    initial: float = 1e-1


class Gated(Residual, kind="gated"):
    """x + tanh(gate) * f(x) with one learned gate, starting at ``initial`` (Flamingo, Alayrac et al. 2022)."""

    initial: float = 0.0


class NoResidual(Residual, kind="none"):
    """f(x) alone."""


class Reversible(Residual, kind="reversible"):
    """Two streams, at first both the input: (a, b) -> (b, a + f(b)), so that training computes what goes into a branch again from what comes
    out, and keeps the activations of one branch at a time, however many there are (RevNet, Gomez et al. 2017; Reformer, Kitaev et al. 2020).

    Attention f and feed-forward g make y1 = x1 + f(x2), y2 = x2 + g(y1). All blocks of a stack are reversible or none; its final norm and
    its head stand on both streams side by side, so they are twice as wide as the model.
    """


class Positions(Part, slot=True):
    """Position vectors that join the embedded tokens."""

    def limit(self, context_length: int) -> int | None:
        """How many positions have a vector; None where all have."""
        return None

    def width_problems(self, width: int) -> list[Problem]:
        """Problems with vectors of ``width`` features."""
        return []


class Learned(Positions, kind="learned"):
    """One trained vector a position, up to the model's ``context_length``.

    Position p is row p + ``offset`` of a table that is longer by it; the first rows stand for nothing (RoBERTa and BART: 2).
    """

    offset: int = Field(default=0, ge=0, description="rows before that of the first position")

    def limit(self, context_length: int) -> int | None:
        return context_length


class Axial(Positions, kind="axial"):
    """Positions as the cells of a grid, written row by row, a trained vector for each place on each axis: those of a position are added, or
    with ``widths`` stand side by side (Ho et al. 2019; Kitaev et al. 2020). n + m vectors instead of n m.
    """

    shape: Seq[int] = Field(
        default=(64, 64), min_length=1, max_length=16, description="places on each axis; their product is the number of positions"
    )
    widths: Seq[int] = Field(default=(), description="features of each axis, which add up to the width; default: all of it, added")

    def limit(self, context_length: int) -> int | None:
        return prod(self.shape)

    def width_problems(self, width: int) -> list[Problem]:
        total = sum(self.widths)
        if not self.widths or total == width:
            return []
        sentence = f"the axes have {' + '.join(map(str, self.widths))} = {total} features, and a position {width}"
        return [Problem(("widths",), f"{sentence}; give widths that add up to it, or none")]

    def problems(self) -> list[Problem]:
        found = [
            Problem((name,), f"{min(sizes)} is no size; give at least 1 for each axis")
            for name, sizes in (("shape", self.shape), ("widths", self.widths))
            if sizes and min(sizes) < 1
        ]
        if self.widths and len(self.widths) != len(self.shape):
            found.append(
                Problem(("widths",), f"{len(self.widths)} widths are given for {len(self.shape)} axes; give one for each, or none")
            )
        if not found and prod(self.shape) > LARGEST:
            found.append(Problem(("shape",), f"a grid of more than {LARGEST} positions is larger than any sequence; give smaller axes"))
        return found


class Sinusoidal(Positions, kind="sinusoidal"):
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)) (Vaswani et al. 2017)."""

    base: float = Field(default=10000.0, gt=1)


class LearnedSinusoidal(Positions, kind="learned_sinusoidal"):
    """W2 φ(W1 PE(p) + b1) + b2: the sinusoid of a position through a feed-forward net (Wang et al. 2022)."""

    base: float = Field(default=10000.0, gt=1)
    hidden: int | None = Field(default=None, gt=0, description="default: the width of the position vectors")
    activation: Activation = "gelu"


class NoPositions(Positions, kind="none"):
    """Nothing: a causal model can learn order without (NoPE, Haviv et al. 2022)."""


class Relative(Part, slot=True):
    """Position information inside attention."""

    @property
    def bounded(self) -> bool:
        """True if positions beyond the context length have no meaning."""
        return False


class RopeScaling(Part, slot=True):
    """How rotary frequencies are changed to reach past the trained length."""


class LinearScaling(RopeScaling, kind="linear"):
    """Positions divided by ``factor`` (Chen et al. 2023)."""

    factor: float = Field(gt=1)


class NTKScaling(RopeScaling, kind="ntk"):
    """base * factor^(Dk / (Dk - 2)): high frequencies keep, low ones stretch (NTK-aware interpolation, 2023)."""

    factor: float = Field(gt=1)


class YarnScaling(RopeScaling, kind="yarn"):
    """Interpolates low frequencies, keeps high ones, and scales q and k by 0.1 ln(factor) + 1 (Peng et al. 2023)."""

    factor: float = Field(gt=1)
    original_length: int = Field(gt=0)
    beta_fast: float = Field(default=32.0, ge=1e-6, le=1e6, description="turns within original_length from which a pair is kept")
    beta_slow: float = Field(default=1.0, ge=1e-6, le=1e6, description="turns up to which a pair is interpolated")


class Llama3Scaling(RopeScaling, kind="llama3"):
    """Divides by ``factor`` the frequencies whose wavelength is long, with a smooth passage (Llama 3.1, 2024)."""

    factor: float = Field(gt=1)
    original_length: int = Field(gt=0)
    low_frequency_factor: float = Field(default=1.0, gt=0)
    high_frequency_factor: float = Field(default=4.0, gt=0)

    def problems(self) -> list[Problem]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        return [] if low < high else [Problem(("high_frequency_factor",), f"{high:g} is not above low_frequency_factor, which is {low:g}")]


class Rope(Relative, kind="rope"):
    """q and k rotated by position, pairs (i, i + Dr/2) of the first ``fraction`` of the head (Su et al. 2021)."""

    base: float = Field(default=10000.0, gt=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    scaling: RopeScaling | None = None


class Alibi(Relative, kind="alibi"):
    """-m_h (i - j) added to the logits, slopes m_h = 2^(-8h/H) (Press et al. 2022).

    ``scaled``: divided by temperature √Dk, as the products q · k are. ``rounded``: m_h j in the place of it, with m_h, j and their product
    in bf16; what a query has in common with all its keys a softmax does not see, so only the rounding differs. Falcon-RW has both.
    """

    scaled: bool = Field(default=False, description="divided by temperature √Dk, together with q · k")
    rounded: Literal["bf16"] | None = Field(
        default=None, description="the precision of slopes and of their products; default: as exact as the rest"
    )


class Shaw(Relative, kind="shaw"):
    """q_i · r_c / (temperature √Dk) added to the logits, c = clip(j - i, -k, k), the vectors r shared by all heads (Shaw et al. 2018).

    With ``values`` a vector of c joins each value as well.
    """

    max_distance: int = Field(default=16, gt=0, description="k: what is further away counts as this far")
    values: bool = False


class T5Buckets(Relative, kind="t5"):
    """A learned number for each head and bucket of j - i added to the logits (T5, Raffel et al. 2020).

    Half of the buckets hold one distance each, the others ever more of them up to ``max_distance``, beyond which all share the last. Under
    a mask that is not causal, earlier and later keys have half of the buckets each. With ``shared`` the table of a stack's first such layer
    serves the others, as in T5.
    """

    num_buckets: int = Field(default=32, ge=4)
    max_distance: int = Field(default=128, gt=0)
    shared: bool = Field(default=False, description="one table for all layers of a stack that ask for the same")

    def problems(self) -> list[Problem]:
        if self.max_distance > self.num_buckets // 2:
            return []
        least = self.num_buckets // 2 + 1
        return [Problem(("max_distance",), f"{self.max_distance} is within the buckets of one distance each; give at least {least}")]


class NoRelative(Relative, kind="none"):
    """Content alone."""
