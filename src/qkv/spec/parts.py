"""Specs of norms, residual connections, position embeddings, relative positions and RoPE scalings."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BeforeValidator, Field

from qkv.spec.base import LARGEST, Part, Seq
from qkv.spec.errors import Problem

GridSide = Annotated[int, Field(gt=0, le=4096)]
Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu", "sigmoid", "tanh", "identity"]


class Norm(Part, slot=True):
    """Base class of normalisations of a sequence of vectors."""

    identity: ClassVar[bool] = False
    """True if it leaves the vectors unchanged."""
    over_batch: ClassVar[bool] = False
    """True if its statistics are taken over the tokens of a batch, not over each vector separately."""

    @property
    def unweighted(self) -> Norm:
        """Norm with the same settings, but without learned weight and bias."""
        return self


class LayerNorm(Norm, kind="layer_norm"):
    """Layer norm: (x - mean) / sqrt(var + eps) * weight + bias, over the features of one position (Ba et al. 2016).

    ``weight`` or ``bias`` false: the norm has no such parameter (OLMo, Groeneveld et al. 2024). ``zero_centred``: the
    factor is 1 + weight, initialised to weight 0 (Nemotron-4, Parmar et al. 2024).
    """

    eps: float = Field(default=1e-5, gt=0)
    bias: bool = True
    weight: bool = Field(default=True, description="a learned factor per feature")
    zero_centred: bool = Field(default=False, description="the scale is 1 + weight")

    def problems(self) -> list[Problem]:
        return _centre_problems(self)

    @property
    def unweighted(self) -> LayerNorm:
        return LayerNorm(eps=self.eps, weight=False, bias=False)


class RMSNorm(Norm, kind="rms_norm"):
    """RMS norm: x / sqrt(mean(x²) + eps) * weight, over the features of one position (Zhang & Sennrich 2019).

    ``zero_centred``: the factor is 1 + weight, initialised to weight 0, so that weight decay pulls it to 1 (Gemma,
    2024).
    """

    eps: float = Field(default=1e-6, gt=0)
    weight: bool = True
    zero_centred: bool = Field(default=False, description="the scale is 1 + weight")

    def problems(self) -> list[Problem]:
        return _centre_problems(self)

    @property
    def unweighted(self) -> RMSNorm:
        return RMSNorm(eps=self.eps, weight=False)


def _centre_problems(norm: LayerNorm | RMSNorm) -> list[Problem]:
    if norm.weight or not norm.zero_centred:
        return []
    return [Problem(("zero_centred",), "there is no weight to centre; leave weight true, or zero_centred false")]


class BatchNorm(Norm, kind="batch_norm"):
    """Batch norm: (x - mean) / sqrt(var + eps) * weight + bias, per feature over all unpadded tokens of the batch.

    In evaluation, running statistics are used.
    """

    over_batch = True
    eps: float = Field(default=1e-5, gt=0)
    momentum: float = Field(default=0.1, gt=0, le=1)


class GridNorm(Norm, kind="grid_norm"):
    """Norm over a grid: (x - mean) / sqrt(var + eps) * weight + bias, over all positions and features of a row.

    Group norm with one group (Wu & He 2018; PoolFormer, Yu et al. 2022). It needs positions on a grid.
    """

    axes: ClassVar[int] = 2
    eps: float = Field(default=1e-5, gt=0)


class NoNorm(Norm, kind="none"):
    """Identity: no normalisation."""

    identity = True


LearnedActivation = Literal["xielu"]
"""Activation functions with learned parameters."""


def _switched(value: Any) -> Any:
    return ("rms_norm" if value else "none") if isinstance(value, bool) else value


SwitchedNorm = Annotated[Norm, BeforeValidator(_switched, json_schema_input_type=bool | Norm)]
"""A norm, or ``true`` for ``rms_norm`` and ``false`` for ``none``."""


class OutputGate(Part, slot=True):
    """Base class of output gates of attention, which multiply the outputs of heads before the output projection."""

    identity: ClassVar[bool] = False
    """True if it leaves the outputs unchanged."""


class NoOutputGate(OutputGate, kind="none"):
    """No gate."""

    identity = True


class MappedGate(OutputGate):
    """Base class of gates g(x W_g), with g the logistic function or softplus, ln(1 + e^z) (Laguna, Poolside 2026)."""

    function: Literal["sigmoid", "softplus"] = Field(default="sigmoid", description="function g of the gate")


class FeatureGate(MappedGate, kind="features"):
    """Gate g(x W_g) per feature of each head (Qiu et al. 2025, Qwen3-Next)."""


class HeadGate(MappedGate, kind="heads"):
    """Gate g(x W_g) per head, the same for all of its features (Qiu et al. 2025, LFM3)."""


class FactorGate(OutputGate, kind="factor"):
    """Fixed ``factor`` of the outputs, as of the values (MiMo-V2-Flash, Xiaomi 2025)."""

    factor: float = Field(default=1.0, gt=0)


class Residual(Part, slot=True):
    """Base class of residual connections, which combine the input x and the output f(x) of a branch."""

    keeps_input: ClassVar[bool] = True
    """True if the output contains the input x beside f(x)."""
    reversible: ClassVar[bool] = False
    """True if there are two streams, and the input can be recomputed from the output."""


class Add(Residual, kind="add"):
    """Plain residual connection, x + factor · f(x); ``factor`` is fixed (Granite, IBM 2024)."""

    factor: float = Field(default=1.0, gt=0)


class Scaled(Residual, kind="scaled"):
    """LayerScale: x + weight * f(x), one learned weight per feature, initially ``initial`` (Touvron et al. 2021)."""

    initial: float = 1e-1


class Gated(Residual, kind="gated"):
    """Gated residual connection x + tanh(gate) * f(x), one learned gate, initially ``initial``.

    Flamingo, Alayrac et al. 2022.
    """

    initial: float = 0.0


class Resurrecting(Residual, kind="resurrecting"):
    """Self-resurrecting gates: p ⊙ [p > τ] ⊙ f(x) + (1 - p) ⊙ [1 - p > τ] ⊙ x, p = σ(x), τ = ``threshold``.

    Each feature of a pretrained decoder is kept, replaced by what cross-attention reads, or mixed; a closed gate opens
    again as soon as x changes, since it has no weights (VisualGPT, Chen et al. 2022).
    """

    keeps_input = False
    threshold: float = Field(default=0.2, ge=0, lt=0.5, description="gates of at most this value are closed")


class NoResidual(Residual, kind="none"):
    """No residual connection: f(x) alone."""

    keeps_input = False


class Reversible(Residual, kind="reversible"):
    """Reversible connection of two streams, both initially the input: (a, b) -> (b, a + f(b)).

    RevNet, Gomez et al. 2017; Reformer, Kitaev et al. 2020. Training recomputes the input of each branch from its
    output and stores the activations of one branch at a time. With attention f and feed-forward g: y1 = x1 + f(x2),
    y2 = x2 + g(y1). All blocks of a stack must be reversible, or none; final norm and head read both streams
    concatenated, twice the model's width.
    """

    reversible = True


class OnGrid(Protocol):
    """Part that needs positions on a grid of ``axes`` axes; any positions if ``axes`` is 1."""

    axes: ClassVar[int]
    kind: ClassVar[str]


def grid_problems(part: OnGrid, axes: int, *path: str | int) -> list[Problem]:
    """Return one error at ``path`` if ``part`` needs a grid whose number of axes differs from ``axes``; else empty."""
    if part.axes in (1, axes):
        return []
    place = "a sequence" if axes == 1 else f"on a grid of {axes} axes"
    sentence = f"{part.kind!r} needs positions on a grid of {part.axes} axes, such as image patches, but these are"
    return [Problem(path, f"{sentence} {place}; use another kind")]


class Positions(Part, slot=True):
    """Base class of absolute position embeddings, combined with the token embeddings."""

    absent: ClassVar[bool] = False
    """True if there are no position vectors."""
    axes: ClassVar[int] = 1
    """Number of axes of the grid on which positions must lie; 1: any sequence."""

    leads: ClassVar[bool] = False
    """True if the spec has a field ``leading``: the number of positions before the grid that have vectors, too."""

    def resampled_from(self, grid: tuple[int, ...], leading: int) -> Positions:
        """Return positions with vectors learned on ``grid`` and resampled to the input's grid; by default unchanged."""
        return self

    def canonical(self, grid: tuple[int, ...] | None) -> Positions:
        """Return equivalent positions for comparing specs of models whose positions lie on ``grid``."""
        return self

    def limit(self, context_length: int) -> int | None:
        """Return the number of positions that have a vector in a model of ``context_length``; None for no limit."""
        return None

    @property
    def limited_by(self) -> str:
        """Dotted configuration key that limits the number of positions, for messages."""
        return "model.context_length"

    def width_problems(self, width: int) -> list[Problem]:
        """Return the errors in these settings for position vectors of ``width`` features; empty if none."""
        return []


class Learned(Positions, kind="learned"):
    """One learned vector per position, up to the model's ``context_length``.

    Position p reads row p + ``offset`` of the table; the first ``offset`` rows are unused (RoBERTa and BART: 2).
    """

    offset: int = Field(default=0, ge=0, description="unused rows before the first position")

    def resampled_from(self, grid: tuple[int, ...], leading: int) -> Positions:
        return LearnedGrid(shape=grid, leading=leading)

    def limit(self, context_length: int) -> int | None:
        return context_length


class LearnedGrid(Positions, kind="learned_grid"):
    """Learned vectors on a grid, such as image patches, resampled to the grid of the input (bicubic).

    So a model trained on images of one size can read another size (ViT, Dosovitskiy et al. 2021; DINOv2, Oquab et al.
    2023). The vectors of ``leading`` positions before the grid, such as a class token, are not resampled.
    """

    axes = 2
    leads = True
    shape: Seq[GridSide] = Field(min_length=2, max_length=2, description="rows and columns of the learned vectors")
    leading: int = Field(default=1, ge=0, description="positions before those of the grid, such as a class token")

    def canonical(self, grid: tuple[int, ...] | None) -> Positions:
        return Learned() if self.shape == grid else self


class Axial(Positions, kind="axial"):
    """Axial position embeddings: one learned table per axis of a grid in row-major order, n + m vectors instead of n m.

    The vectors of a position are summed, or concatenated with ``widths`` (Ho et al. 2019; Kitaev et al. 2020).
    """

    shape: Seq[int] = Field(
        default=(64, 64),
        min_length=1,
        max_length=16,
        description="size of each axis; the product is the number of positions",
    )
    widths: Seq[int] = Field(
        default=(), description="features of each axis, with the width as their sum; default: full width, summed"
    )

    @property
    def limited_by(self) -> str:
        return "model.frontend.positions.shape"

    def limit(self, context_length: int) -> int | None:
        return prod(self.shape)

    def width_problems(self, width: int) -> list[Problem]:
        total = sum(self.widths)
        if not self.widths or total == width:
            return []
        sentence = f"the axes have {' + '.join(map(str, self.widths))} = {total} features, but positions have {width}"
        return [Problem(("widths",), f"{sentence}; give widths that add up to it, or none")]

    def problems(self) -> list[Problem]:
        problems = [
            Problem((name,), f"{min(sizes)} given, but each axis needs at least 1")
            for name, sizes in (("shape", self.shape), ("widths", self.widths))
            if sizes and min(sizes) < 1
        ]
        if self.widths and len(self.widths) != len(self.shape):
            problems.append(
                Problem(
                    ("widths",),
                    f"{len(self.widths)} widths are given for {len(self.shape)} axes; give one for each, or none",
                )
            )
        if not problems and prod(self.shape) > LARGEST:
            problems.append(
                Problem(
                    ("shape",),
                    f"a grid of more than {LARGEST} positions is larger than any sequence; give smaller axes",
                )
            )
        return problems


class Sinusoidal(Positions, kind="sinusoidal"):
    """Sinusoidal embeddings (Vaswani et al. 2017).

    PE(p, 2i) = sin(p / base^(2i/D))     PE(p, 2i+1) = cos(p / base^(2i/D))

    ``halves``: all sines, then all cosines (Marian 2018). ``closed``: the divisor is base^(i/(D/2 - 1)), so that the
    last one is the base itself (tensor2tensor 2018). ``offset``: number of the first position.
    """

    base: float = Field(default=10000.0, gt=1)
    halves: bool = Field(default=False, description="all sines first, then all cosines; default: alternating")
    closed: bool = Field(default=False, description="divisors end with the base; default: just below it")
    offset: int = Field(default=0, ge=0, le=LARGEST, description="number of the first position")


class Sinusoidal2D(Positions, kind="sinusoidal_2d"):
    """2-D sinusoidal embeddings of positions on a grid, such as image patches: half of the features for each axis.

    The features are the sinusoid of the row, then the sinusoid of the column. Rows and columns are counted from 1; a
    class token is at (0, 0).
    """

    axes = 2
    base: float = Field(default=10000.0, gt=1)


class Sinusoidal3D(Positions, kind="sinusoidal_3d"):
    """3-D sinusoidal embeddings of positions in a video: a third of the features for each of frame, row and column.

    Frames, rows and columns are counted from 1. With ``ordered`` false the frame is not encoded, so that a model that
    treats all positions alike does not see the order of the frames.
    """

    axes = 3
    base: float = Field(default=10000.0, gt=1)
    ordered: bool = Field(default=True, description="false: row and column only")


class LearnedSinusoidal(Positions, kind="learned_sinusoidal"):
    """Learned function of a sinusoid: W2 φ(W1 PE(p) + b1) + b2 with the sinusoid PE(p) (Wang et al. 2022)."""

    base: float = Field(default=10000.0, gt=1)
    hidden: int | None = Field(default=None, gt=0, description="default: the width of the position vectors")
    activation: Activation = "gelu"


class NoPositions(Positions, kind="none"):
    """No position embeddings; causal models can learn the order without them (NoPE, Haviv et al. 2022)."""

    absent = True


class Relative(Part, slot=True):
    """Base class of relative positions, which act inside attention: RoPE, ALiBi, learned biases."""

    causal_only: ClassVar[bool] = False
    """True if they are defined for causal attention only."""
    extrapolates: ClassVar[bool] = True
    """False if distances beyond those of training give scores that the model has never seen."""
    axes: ClassVar[int] = 1
    """Number of axes of the grid on which positions must lie; 1: any sequence."""

    @property
    def place_axes(self) -> int:
        """Number of axes of the positions in a row that it reads, see ``Context.places``; 0: it reads the indices."""
        return 0

    def sized_for(self, grid: tuple[int, ...] | None) -> Self:
        """Return a copy in which sizes that depend on ``grid`` are filled in; None for a sequence."""
        return self

    @property
    def fixed_up_to(self) -> int | None:
        """Longest row whose rotation does not depend on its length; None: no rotation ever does."""
        return None

    @property
    def accepted(self) -> bool:
        """True if the spec allows inexact decoding of rows longer than ``fixed_up_to``."""
        return False

    @property
    def canonical(self) -> Relative:
        """Equivalent copy for comparisons, in which what does not change a forward pass is reset."""
        return self

    def head_problems(self, head_dim: int) -> list[Problem]:
        """Return the errors for ``head_dim`` features per key, such as an odd number for RoPE; empty if none."""
        return []


class RopeScaling(Part, slot=True):
    """Base class of scalings of rotary frequencies, which extend the context beyond the training length."""

    @property
    def fixed_up_to(self) -> int | None:
        """Longest row whose frequencies do not depend on its length; None: no frequency ever does."""
        return None

    @property
    def accepted(self) -> bool:
        """True if the spec allows inexact decoding of rows longer than ``fixed_up_to``."""
        return False

    @property
    def canonical(self) -> RopeScaling:
        """Equivalent copy for comparisons, in which what does not change a forward pass is reset."""
        return self

    def pair_problems(self, pairs: int) -> list[Problem]:
        """Return the errors for ``pairs`` rotated pairs of features in a head; empty if none."""
        return []


class LinearScaling(RopeScaling, kind="linear"):
    """Position interpolation: positions are divided by ``factor`` (Chen et al. 2023)."""

    factor: float = Field(gt=1)


class NTKScaling(RopeScaling, kind="ntk"):
    """NTK-aware scaling: base * factor^(Dk / (Dk - 2)) keeps high frequencies and stretches low ones (2023)."""

    factor: float = Field(gt=1)


class ProportionalScaling(RopeScaling, kind="proportional"):
    """Proportional RoPE: only the fastest ``fraction`` of the pairs rotate, with frequencies divided by ``factor``.

    The frequencies are those of all pairs of a head; the other pairs have the angle 0 (Gemma 4, 2026).
    """

    fraction: float = Field(default=0.5, ge=0, le=1)
    factor: float = Field(default=1.0, ge=1)


class YarnScaling(RopeScaling, kind="yarn"):
    """YaRN: interpolates low frequencies, keeps high ones, and scales q and k by 0.1 ln(factor) + 1 (Peng et al. 2023).

    ``original_length``: positions in the original training; the context becomes ``factor`` times as long.
    ``magnitude``: another scale of q and k (DeepSeek-V2, 2024). ``whole_pairs`` False: the ramp begins and ends between
    two pairs of features (gpt-oss, 2025).
    """

    factor: float = Field(gt=1)
    original_length: int = Field(gt=0)
    beta_fast: float = Field(
        default=32.0, ge=1e-6, le=1e6, description="rotations within original_length above which a frequency is kept"
    )
    beta_slow: float = Field(
        default=1.0,
        ge=1e-6,
        le=1e6,
        description="rotations within original_length below which a frequency is interpolated",
    )
    magnitude: float | None = Field(default=None, gt=0, description="scale of q and k; default: 0.1 ln(factor) + 1")
    whole_pairs: bool = Field(default=True, description="the ramp begins and ends at a pair of features")


class Llama3Scaling(RopeScaling, kind="llama3"):
    """Llama 3's scaling: low frequencies divided by ``factor``, with a smooth transition to unchanged high ones (2024).

    Low: wavelengths above ``original_length`` (positions in the original training) / ``low_frequency_factor``; high:
    below ``original_length`` / ``high_frequency_factor``.
    """

    factor: float = Field(gt=1)
    original_length: int = Field(gt=0)
    low_frequency_factor: float = Field(default=1.0, gt=0)
    high_frequency_factor: float = Field(default=4.0, gt=0)

    def problems(self) -> list[Problem]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        return (
            []
            if low < high
            else [Problem(("high_frequency_factor",), f"{high:g} is not above low_frequency_factor, which is {low:g}")]
        )


class ByLength(RopeScaling):
    """Base class of scalings whose frequencies depend on the length of a row above ``original_length``.

    Keys in a decoding state keep the rotation of the length at which they were computed, so decoding of longer rows
    differs from a forward pass of the whole row.
    """

    original_length: int = Field(gt=0, le=LARGEST, description="positions in the original training")
    inexact_decoding: bool = Field(default=False, description="accept decoding of rows above original_length")

    @property
    def fixed_up_to(self) -> int | None:
        return self.original_length

    @property
    def accepted(self) -> bool:
        return self.inexact_decoding

    @property
    def canonical(self) -> RopeScaling:
        return self.changed(inexact_decoding=False)


class DynamicScaling(ByLength, kind="dynamic"):
    """Dynamic NTK-aware scaling: base · (1 + factor (L / original_length - 1))^(Dr / (Dr - 2)), L the length (2023).

    Rows of up to ``original_length`` positions are not scaled.
    """

    factor: float = Field(default=1.0, gt=0)


class LongRopeScaling(ByLength, kind="longrope"):
    """LongRoPE: the frequency of pair i is divided by ``short[i]``, in longer rows by ``long[i]`` (Ding et al. 2024).

    Rows above ``original_length`` are long. Queries and keys are multiplied by ``magnitude``.
    """

    short: Seq[float] = Field(min_length=1, max_length=1 << 16, description="divisor of each pair in short rows")
    long: Seq[float] = Field(min_length=1, max_length=1 << 16, description="divisor of each pair in long rows")
    magnitude: float = Field(default=1.0, gt=0, description="factor of queries and keys")

    def problems(self) -> list[Problem]:
        return [
            Problem((name,), f"{min(divisors):g} given, but divisors of frequencies are above 0")
            for name, divisors in (("short", self.short), ("long", self.long))
            if min(divisors) <= 0
        ]

    def pair_problems(self, pairs: int) -> list[Problem]:
        return [
            Problem((name,), f"{len(divisors)} divisors are given for {pairs} pairs; give one for each")
            for name, divisors in (("short", self.short), ("long", self.long))
            if len(divisors) != pairs
        ]


class Rope(Relative, kind="rope"):
    """Rotary position embedding: q and k are rotated by their position (Su et al. 2021).

    Feature i is paired with i + Dr/2 among the first Dr = ``fraction`` · Dk features of a head.
    """

    extrapolates = False
    base: float = Field(default=10000.0, gt=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    scaling: RopeScaling | None = None

    @property
    def fixed_up_to(self) -> int | None:
        return None if self.scaling is None else self.scaling.fixed_up_to

    @property
    def accepted(self) -> bool:
        return self.scaling is not None and self.scaling.accepted

    @property
    def canonical(self) -> Relative:
        return self if self.scaling is None else self.changed(scaling=self.scaling.canonical)

    def rotated(self, head_dim: int) -> int:
        """Return the number of features per head that are rotated, Dr = ``fraction`` · ``head_dim``."""
        return int(head_dim * self.fraction)

    def head_problems(self, head_dim: int) -> list[Problem]:
        rotated = self.rotated(head_dim)
        if rotated and rotated % 2 == 0:
            problems = [] if self.scaling is None else self.scaling.pair_problems(rotated // 2)
            return [problem.under("scaling") for problem in problems]
        return [
            Problem(
                (), f"RoPE rotates pairs of features, but {rotated} of a head would be rotated; give an even number"
            )
        ]


class Rope2D(Relative, kind="rope_2d"):
    """2-D RoPE on a grid: rotates half of the features by the row, the other half by the column (Heo et al. 2024).

    Among the first Dr = ``fraction`` · Dk features of a head, i is paired with i + Dr/2; the first Dr/4 pairs are
    rotated by the row, the others by the column. A class token is not rotated. With ``normalised`` the coordinate of
    row r = 1 … R is 2π ((2r - 1) / R - 1), and columns likewise, so that images of all sizes have the same range of
    coordinates (DINOv3, Siméoni et al. 2025).
    """

    extrapolates = False
    axes = 2
    base: float = Field(
        default=100.0,
        gt=1,
        description="base of the rotation; lower than for texts, as images have few rows and columns",
    )
    fraction: float = Field(default=1.0, gt=0, le=1)
    normalised: bool = Field(default=False, description="coordinates from -2π to 2π; default: numbers from 1")

    def rotated(self, head_dim: int) -> int:
        """Return the number of features per head that are rotated, Dr = ``fraction`` · ``head_dim``."""
        return int(head_dim * self.fraction)

    def head_problems(self, head_dim: int) -> list[Problem]:
        rotated = self.rotated(head_dim)
        if rotated and rotated % 4 == 0:
            return []
        sentence = f"2-D RoPE rotates pairs for each of two axes, but {rotated} features of a head would be rotated"
        return [Problem((), f"{sentence}; make that a multiple of 4")]


class RopeAxes(Relative, kind="rope_axes"):
    """RoPE by positions on several axes: time, row and column of a picture among words (M-RoPE, Wang et al. 2024).

    ``sections`` gives the number of feature pairs that each axis rotates, one axis after the other. ``interleaved``:
    pairs take turns, pair i is rotated by axis a = i mod A if i < A · sections[a], else by the first one (Qwen3-VL,
    2025). A word has one position on all axes, one more than the largest before it; the positions of a picture's
    vectors are that number plus their coordinates.
    """

    extrapolates = False
    rope: Rope = Rope()
    sections: Seq[int] = Field(default=(16, 24, 24), min_length=1, max_length=8, description="pairs of each axis")
    interleaved: bool = Field(default=False, description="pairs of the axes take turns; default: axis by axis")

    @property
    def place_axes(self) -> int:
        return len(self.sections)

    @property
    def canonical(self) -> Relative:
        return self.changed(rope=self.rope.canonical)

    def axis_of_pairs(self) -> tuple[int, ...]:
        """Return the axis that rotates each pair of features."""
        if not self.interleaved:
            return tuple(axis for axis, count in enumerate(self.sections) for _ in range(count))
        axes = len(self.sections)
        return tuple(i % axes if i < axes * self.sections[i % axes] else 0 for i in range(sum(self.sections)))

    def head_problems(self, head_dim: int) -> list[Problem]:
        inner = [problem.under("rope") for problem in self.rope.head_problems(head_dim)]
        pairs = self.rope.rotated(head_dim) // 2
        if not inner and sum(self.sections) != pairs:
            sentence = f"{list(self.sections)} are {sum(self.sections)} pairs, but {pairs} of a head are rotated"
            return [Problem(("sections",), f"{sentence}; give sections that add up to {pairs}")]
        return inner

    def problems(self) -> list[Problem]:
        if min(self.sections) < 0:
            return [Problem(("sections",), f"{min(self.sections)} given, but a section has 0 pairs or more")]
        if self.rope.fixed_up_to is not None:
            sentence = "frequencies that depend on the length of a row are not supported with several axes"
            return [Problem(("rope", "scaling"), f"{sentence}; give another kind")]
        return []


class Alibi(Relative, kind="alibi"):
    """ALiBi: -m_h (i - j) added to the logits, slopes m_h = 2^(-8h/H) (Press et al. 2022).

    ``scaled``: the term is divided by temperature √Dk, like the products q · k. ``rounded``: the term is m_h j instead,
    with m_h, j and the product in bf16; the omitted -m_h i is equal for all keys and cancels in the softmax. Falcon-RW
    uses both.
    """

    causal_only = True
    scaled: bool = Field(default=False, description="divide by temperature √Dk, like q · k")
    rounded: Literal["bf16"] | None = Field(
        default=None, description="precision of slopes and of their products with positions; default: not rounded"
    )


class Shaw(Relative, kind="shaw"):
    """Learned vectors r of relative positions: q_i · r_c / (temperature √Dk) added to the logits (Shaw et al. 2018).

    c = clip(j - i, -k, k); r is shared by all heads. With ``values``, a second learned vector for c is added to each
    value.
    """

    max_distance: int = Field(default=16, gt=0, description="k: larger distances are clipped to it")
    values: bool = False


class T5Buckets(Relative, kind="t5"):
    """A learned bias per head and bucket of j - i, added to the logits (T5, Raffel et al. 2020).

    Half of the buckets hold one distance each. The sizes of the others grow logarithmically up to ``max_distance``; all
    larger distances share the last bucket. Under a non-causal mask, half of the buckets are for earlier keys and half
    for later keys. With ``shared`` all layers of a stack use one table, as in T5.
    """

    num_buckets: int = Field(default=32, ge=4)
    max_distance: int = Field(default=128, gt=0)
    shared: bool = Field(default=False, description="one table for all layers of a stack with equal settings")

    def problems(self) -> list[Problem]:
        if self.max_distance > self.num_buckets // 2:
            return []
        least = self.num_buckets // 2 + 1
        return [
            Problem(
                ("max_distance",),
                f"{self.max_distance} is too small, as distances below {least} have one bucket each; give {least}",
            )
        ]


class Bias2D(Relative, kind="bias_2d"):
    """Learned bias per head and offset (rows, columns) between query and key on a grid (Swin, Liu et al. 2021).

    Pairs with a class token have separate biases: token as query, as key, and as both (BEiT, Bao et al. 2022). With
    ``shared`` all layers of a stack use one table.
    """

    extrapolates = False
    axes = 2
    sizes: Seq[int] | None = Field(
        default=None, min_length=2, max_length=2, description="rows and columns; default: those of the image patches"
    )
    shared: bool = Field(default=False, description="one table for all layers of a stack with equal settings")

    def sized_for(self, grid: tuple[int, ...] | None) -> Self:
        return self if self.sizes or grid is None or len(grid) != self.axes else self.changed(sizes=grid)

    def problems(self) -> list[Problem]:
        if self.sizes is None or 1 <= min(self.sizes) <= max(self.sizes) <= 10_000:
            return []
        return [Problem(("sizes",), f"{' × '.join(map(str, self.sizes))} given; each axis has 1 to 10,000 positions")]


class ShortestPath(Relative, kind="shortest_path"):
    """A learned bias per head and length of the shortest path between two nodes (Graphormer, Ying et al. 2021).

    Paths longer than ``max_distance`` share the bias of the longest path; pairs without a path have another bias.
    ``distances`` of the graph processor should be at least ``max_distance``. Without a graph all positions are
    neighbours.
    """

    max_distance: int = Field(default=8, gt=0, le=1024, description="longest path length with a bias of its own")


class NoRelative(Relative, kind="none"):
    """No relative positions in attention."""
