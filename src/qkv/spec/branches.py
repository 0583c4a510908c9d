"""Specs of residual branches: mixers, which exchange information between positions, and position-wise branches."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from qkv.spec.base import Part, Spec
from qkv.spec.errors import Problem
from qkv.spec.masks import Causal, Mask
from qkv.spec.models.growth import DENSE, NEAR, POSITION_WISE, RECURRENT, Growth
from qkv.spec.parts import (
    Activation,
    LearnedActivation,
    NoNorm,
    NoOutputGate,
    NoRelative,
    Norm,
    OutputGate,
    Relative,
    SwitchedNorm,
    grid_problems,
)


class Exactness(NamedTuple):
    """Row lengths for which token-by-token decoding gives the outputs of one forward pass, as in training.

    length: longest such row; None: any length.   accepted: True if the spec allows decoding of longer rows.
    """

    length: int | None = None
    accepted: bool = False

    def covers(self, length: int) -> bool:
        """Return whether rows of ``length`` positions are decoded exactly."""
        return self.length is None or length <= self.length


class Branch(Part, slot=True):
    """Base class of residual branches of a block."""

    reads_memory: ClassVar[bool] = False
    """True if the branch reads an encoder's output or another memory."""

    @property
    def mixes(self) -> bool:
        """True if the branch exchanges information between positions."""
        return True

    @property
    def causal(self) -> bool:
        """True if no position depends on a later one."""
        return True

    @property
    def decodes(self) -> bool:
        """True if it can decode token by token: no position after a row's prefix (source) depends on a later one."""
        return self.causal

    @property
    def decoding_advice(self) -> str:
        """Advice in the error message if a model must decode and this branch cannot; empty: advise a causal mask."""
        return ""

    @property
    def growth(self) -> Growth | None:
        """Theoretical growth of time, memory, path length and sequential steps with N; None: not stated.

        See ``Growth``.
        """
        return None if self.mixes else POSITION_WISE

    @property
    def exactness(self) -> Exactness:
        """Row lengths for which token-by-token decoding gives the outputs of one forward pass."""
        return Exactness()

    @property
    def reads_types(self) -> bool:
        """True if the branch itself, not only the front end, reads token types (ids of first and second text)."""
        return False

    @property
    def reads_prefix(self) -> bool:
        """True if the output depends on the length of each row's prefix, such as the source text before a target."""
        return False

    @property
    def place_axes(self) -> int:
        """Number of axes of the positions in a row that the branch reads; 0: it reads the indices in the row."""
        relative = getattr(self, "relative", None)
        return relative.place_axes if isinstance(relative, Relative) else 0

    @property
    def level_factors(self) -> tuple[tuple[int, ...], ...]:
        """Factors of each mask of levels, see ``Scales``; empty without one."""
        return ()

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        """Return a copy whose masks of levels have other ``factors``."""
        return self

    @property
    def only_visible_keys(self) -> bool:
        """True if a query reads exactly the keys that masks allow, so that tasks can add a mask (as XLNet does)."""
        return False

    def extrapolates(self, length: int) -> bool:
        """Return False if rows longer than the training ``length`` have distances unseen in training (as for RoPE)."""
        return True

    @property
    def longest_row(self) -> int | None:
        """Maximum number of positions of a row if the branch has weights per position; None: no limit, or unknown."""
        return None

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        """Return a copy in which sizes that depend on the positions of a row are filled in.

        positions: maximum number of positions.   grid: sizes of the axes of their grid; None for a sequence.
        """
        return self

    def width_problems(self, width: int) -> list[Problem]:
        """Return the errors at model width ``width``, such as heads that do not divide it; empty if none."""
        return []

    def grid_problems(self, axes: int) -> list[Problem]:
        """Return the errors of these settings for a grid of ``axes`` axes, 1 for a sequence; empty if none."""
        stated = getattr(self, "axes", None)
        if stated in (None, axes):
            return []
        places = "in a sequence, of one axis" if axes == 1 else f"on a grid of {axes} axes"
        return [Problem(("axes",), f"{stated} given, but positions are {places}; leave it out")]

    def position_problems(self, positions: int) -> list[Problem]:
        """Return the errors of these settings for rows of up to ``positions`` positions; empty if none."""
        if self.longest_row is None or self.longest_row >= positions:
            return []
        sentence = f"{self.longest_row} positions are fewer than the {positions} of a row; leave it out, or give more"
        return [Problem(("length",), sentence)]

    def canonical(self, width: int) -> Self:
        """Return an equivalent copy for comparisons: sizes for ``width`` filled in, settings such as dropout reset."""
        return self


def heads_divide(width: int, num_heads: int) -> list[Problem]:
    """Return one error if ``num_heads`` does not divide ``width``; else an empty list."""
    if width % num_heads == 0:
        return []
    allowed = ", ".join(str(h) for h in range(1, min(width, 64) + 1) if width % h == 0)
    return [
        Problem(
            ("num_heads",),
            f"{num_heads} heads do not divide the width {width}; heads that do: {allowed}; or give head_dim",
        )
    ]


def rotated_pairs(field: str, owner: str, features: int) -> list[Problem]:
    """Return one error for ``field`` if RoPE cannot rotate the features of ``owner`` in pairs; else an empty list."""
    if features % 2 == 0:
        return []
    sentence = f"RoPE rotates pairs of features, but {owner} has {features}; give an even number, or base none"
    return [Problem((field,), sentence)]


class DotProduct(Branch):
    """Base class of dot-product attention: H query heads, G key/value heads, Dk features per key and Dv per value."""

    num_heads: int = Field(default=4, gt=0)
    num_kv_heads: int | None = Field(default=None, gt=0, description="default: num_heads")
    head_dim: int | None = Field(default=None, gt=0, description="default: width / num_heads")
    value_dim: int | None = Field(default=None, gt=0, description="default: head_dim")
    temperature: float = Field(default=1.0, gt=0)
    bias: bool = True
    output_bias: bool | None = Field(default=None, description="bias of the output projection; default: as bias")
    qk_norm: SwitchedNorm = Field(
        default=NoNorm(), description="norm of queries and keys over the features of a head; true: rms_norm"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, G; by default the number of query heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def maps_values(self) -> bool:
        """True if values are a linear map of x; False if they are x itself."""
        return True

    @property
    def maps_output(self) -> bool:
        """True if a linear map follows the heads; False if the output is the concatenation of their outputs."""
        return True

    def dims(self, width: int) -> tuple[int, int]:
        """Return (Dk, Dv), the features per head of a key and of a value, in a model of ``width`` features."""
        head_dim = self.head_dim or width // self.num_heads
        return head_dim, self.value_dim or head_dim

    @property
    def biases_apart(self) -> bool:
        """True if queries and values have a bias and keys have none."""
        return False

    @property
    def ends_with_bias(self) -> bool:
        """True if the output projection has a bias."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def norms_heads(self) -> bool:
        """True if the queries and keys of each head are normalised (``qk_norm``)."""
        return not self.qk_norm.identity

    def problems(self) -> list[Problem]:
        problems: list[Problem] = []
        if self.num_heads % self.kv_heads:
            problems.append(
                Problem(
                    ("num_kv_heads",),
                    f"{self.kv_heads} K/V heads cannot be shared evenly by {self.num_heads} query heads",
                )
            )
        if self.qk_norm.over_batch:
            problems.append(
                Problem(
                    ("qk_norm",), "batch_norm normalises over positions, not heads; use layer_norm, rms_norm or none"
                )
            )
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)

    def canonical(self, width: int) -> Self:
        head_dim, value_dim = self.dims(width)
        sizes = {"head_dim": head_dim, "value_dim": value_dim, "num_kv_heads": self.kv_heads}
        return self.changed(**sizes, output_bias=self.ends_with_bias, dropout=0.0)


class Headed(Branch):
    """Base class of branches with heads."""

    num_heads: int = Field(default=4, gt=0)


class HeadedAttention(Headed):
    """Base class of attention whose H heads have Dk features in queries, keys and values."""

    head_dim: int | None = Field(default=None, gt=0, description="default: width / num_heads")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def head_width(self, width: int) -> int:
        """Return the number of features per head, Dk, in a model of ``width`` features."""
        return self.head_dim or width // self.num_heads

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.head_dim else heads_divide(width, self.num_heads)

    def canonical(self, width: int) -> Self:
        return self.changed(head_dim=self.head_width(width), dropout=0.0)


class Masked(Branch):
    """Base class of branches with an attention mask."""

    mask: Mask = Causal()

    @property
    def growth(self) -> Growth | None:
        return DENSE if self.mask.reach is None else NEAR

    @property
    def causal(self) -> bool:
        return self.mask.causal

    @property
    def decodes(self) -> bool:
        return self.mask.decodes

    @property
    def reads_prefix(self) -> bool:
        return self.decodes and self.mask.reads_prefix

    @property
    def level_factors(self) -> tuple[tuple[int, ...], ...]:
        return self.mask.level_factors

    def with_factors(self, factors: tuple[int, ...]) -> Self:
        return self.changed(mask=self.mask.with_factors(factors))


class MaskedAttention(Masked, DotProduct):
    """Base class of self-attention with an attention mask."""


def value_convolution_field() -> Any:
    """Return the field of attention with the kernel size of a convolution of the values."""
    return Field(
        default=None,
        gt=0,
        le=100_000,
        description="kernel size, odd, of a convolution of each head's values that is added to its output",
    )


def convolution_problems(part: MaskedAttention, kernel_size: int | None) -> list[Problem]:
    """Return the errors of a convolution of the values of ``part`` with this kernel size; empty if none."""
    if kernel_size is None:
        return []
    if kernel_size % 2 == 0:
        sentence = f"{kernel_size} positions have no middle; give an odd number"
    elif part.decodes:
        sentence = "the convolution reads later positions, but the mask is causal; leave it out, or use mask: full"
    elif part.kv_heads != part.num_heads:
        sentence = f"{part.num_heads} heads share {part.kv_heads} of values; leave it or num_kv_heads out"
    else:
        return []
    return [Problem(("value_convolution",), sentence)]


class QueryScale(Spec):
    """Factor 1 + rate · ln(1 + ⌊(p + first) / length⌋) of the query at position p (Llama 4, 2025; Ministral 3, 2025).

    It counters the flatter weights of a softmax over many keys.
    """

    rate: float = Field(default=0.1, gt=0)
    length: int = Field(default=8192, gt=0, description="positions between two steps of the factor")
    first: int = Field(default=0, ge=0, le=1, description="number of the first position")


class Attention(MaskedAttention, kind="attention"):
    """Self-attention: concat_h(softmax(Q_h K_g^T / (temperature √Dk) + bias, masked) V_g) W_o (Vaswani et al. 2017).

    ``top_k`` keeps only the k largest logits of each query, ties broken by position (Gupta et al. 2021); 1 is hard
    attention. ``softcap`` bounds logits to (-c, c) before the relative bias and the mask are applied (Gemma 2, 2024).
    ``num_kv_heads`` < ``num_heads``: grouped-query attention (Ainslie et al. 2023); 1: multi-query attention (Shazeer
    2019). ``learned_sink`` adds e^logit, with a learned logit per head, to the denominator of the softmax (gpt-oss,
    2025). ``shaped``: weights α_h I + β_h P_h - γ_h U, where P_h are the softmax weights and U is uniform over the
    visible keys; α = β = γ = 1 and equal scores give the value of each position itself. ``qk_norm_over`` "all_heads":
    one norm over the features of all heads (OLMo 2, 2025); "each_head": other weights in each head (Command R+, 2024).
    ``qk_norm_after`` "rotation": as Hunyuan (2025). ``clip``: MPT (2023) and OLMo (2024). With ``values: identity`` and
    ``output: none`` this is the attention of simplified blocks (He & Hofmann 2024). ``output_gate`` multiplies the
    outputs of the heads before W_o by a gate that is computed from x, and ``output_norm`` normalises them over the
    features of all heads (sub-LN, Wang et al. 2022; BitNet, 2025). ``value_convolution`` K adds Σ_t w_ht v_{i + t -
    ⌊K/2⌋}, t < K, to the output of each head (Nyströmformer, Xiong et al. 2021).
    """

    relative: Relative = NoRelative()
    top_k: int | None = Field(
        default=None, gt=0, description="number of largest logits per query that get a weight; default: all"
    )
    softcap: float | None = Field(
        default=None, gt=0, description="c: logits s become c · tanh(s / c) before bias and mask"
    )
    learned_sink: bool = Field(
        default=False, description="a learned logit per head in the softmax, whose weight multiplies no value"
    )
    values: Literal["projected", "identity"] = Field(
        default="projected", description="identity: the values are the features of x, split over the heads"
    )
    output: Literal["projected", "none"] = Field(
        default="projected", description="none: the concatenated outputs of the heads, without a linear map"
    )
    shaped: bool = Field(default=False, description="weights a I + b P - c U instead of P, U uniform over visible keys")
    qk_norm_over: Literal["head", "each_head", "all_heads"] = Field(
        default="head",
        description="qk_norm over a head with shared weights, over a head with its own weights, or over all heads",
    )
    qk_norm_after: Literal["projection", "rotation"] = Field(
        default="projection", description="rotation: qk_norm follows the rotation of queries and keys"
    )
    clip: float | None = Field(
        default=None, gt=0, description="c: projected queries, keys and values are clipped to [-c, c]"
    )
    output_gate: OutputGate = NoOutputGate()
    output_norm: Norm = Field(default=NoNorm(), description="norm of the concatenated outputs of the heads")
    query_scale: QueryScale | None = Field(default=None, description="factor of queries by position; default: none")
    key_bias: bool = Field(default=True, description="bias of keys, if bias is true")
    value_convolution: int | None = value_convolution_field()

    @property
    def biases_apart(self) -> bool:
        return self.bias and not self.key_bias

    @property
    def maps_values(self) -> bool:
        return self.values == "projected"

    @property
    def maps_output(self) -> bool:
        return self.output == "projected"

    @property
    def only_visible_keys(self) -> bool:
        return self.mask.sees_all and self.value_convolution is None

    @property
    def exactness(self) -> Exactness:
        return Exactness(self.relative.fixed_up_to, self.relative.accepted)

    def sized_for(self, positions: int, grid: tuple[int, ...] | None) -> Self:
        relative = self.relative.sized_for(grid)
        return self if relative == self.relative else self.changed(relative=relative)

    def canonical(self, width: int) -> Self:
        return super().canonical(width).changed(relative=self.relative.canonical)

    def grid_problems(self, axes: int) -> list[Problem]:
        return grid_problems(self.relative, axes, "relative")

    def extrapolates(self, length: int) -> bool:
        near = self.mask.reach is not None and self.mask.reach <= length and not self.mask.first_visible
        return self.relative.extrapolates or near

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.relative.causal_only and not self.causal:
            problems.append(
                Problem(
                    ("relative",),
                    f"{self.relative.kind} is defined for causal attention; use a causal mask or another relative part",
                )
            )
        if not self.norms_heads and (self.qk_norm_over, self.qk_norm_after) != ("head", "projection"):
            field = "qk_norm_over" if self.qk_norm_over != "head" else "qk_norm_after"
            problems.append(
                Problem((field,), f"there is no norm of queries and keys; give qk_norm, or leave {field} out")
            )
        if self.output_norm.over_batch:
            sentence = "batch_norm normalises over positions, also over later ones; use layer_norm, rms_norm or none"
            problems.append(Problem(("output_norm",), sentence))
        problems += convolution_problems(self, self.value_convolution)
        if self.clip is not None and not self.maps_values:
            problems.append(Problem(("clip",), "clip applies only to projected values; leave clip or values out"))
        other = "top_k" if self.top_k else "softcap" if self.softcap else ""
        if self.learned_sink and other:
            sentence = f"a learned sink is defined only for a plain softmax over all scores; leave it or {other} out"
            problems.append(Problem(("learned_sink",), sentence))
        return problems

    def width_problems(self, width: int) -> list[Problem]:
        problems = super().width_problems(width) or self._unmapped_problems(width)
        return problems or [p.under("relative") for p in self.relative.head_problems(self.dims(width)[0])]

    def _unmapped_problems(self, width: int) -> list[Problem]:
        """Return the errors if values or outputs have no linear map, but their heads do not add up to ``width``."""
        features, problems = self.dims(width)[1], list[Problem]()
        cases = (("values", self.maps_values, self.kv_heads), ("output", self.maps_output, self.num_heads))
        for field, mapped, heads in cases:
            if not mapped and heads * features != width:
                sentence = f"{heads} heads of {features} features are not the {width} of the model"
                problems.append(
                    Problem((field,), f"{sentence}; leave {field} projected, or change their number or size")
                )
        return problems


class TokenShift(Branch, kind="token_shift"):
    """Shift of feature groups, group g by g positions, then a linear map (causal S²-MLP, Yu et al. 2021)."""

    groups: int = Field(default=2, gt=1)

    @property
    def growth(self) -> Growth:
        return NEAR

    def width_problems(self, width: int) -> list[Problem]:
        if width % self.groups == 0:
            return []
        return [Problem(("groups",), f"{self.groups} groups do not divide the width {width}")]


class CausalConvolution(Branch, kind="causal_convolution"):
    """Causal convolution y_i = Σ_t W_t x_{i - t·dilation} + b, t < kernel_size (WaveNet 2016).

    ``gated``: half of the outputs times the sigmoid of the other half (GLU, Dauphin et al. 2017).
    """

    kernel_size: int = Field(default=3, gt=0)
    dilation: int = Field(default=1, gt=0)
    gated: bool = True

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def tail(self) -> int:
        """Number of earlier positions that an output depends on, (kernel_size - 1) · dilation."""
        return (self.kernel_size - 1) * self.dilation


class Convolution(Branch, kind="convolution"):
    """Centred convolution y_i = Σ_t W_t x_{i + t - ⌊K/2⌋} + b, t < kernel_size K (ConvS2S, Gehring et al. 2017).

    Not causal. ``gated``: half of the outputs times the sigmoid of the other half.
    """

    kernel_size: int = Field(default=3, gt=0)
    gated: bool = True

    @property
    def growth(self) -> Growth:
        return NEAR

    @property
    def causal(self) -> bool:
        return False


class Recurrent(Branch):
    """Base class of recurrent units: h_i = cell(x_i, h_{i-1}) with E features, then a linear map to the width."""

    hidden: int | None = Field(default=None, gt=0, description="default: width")
    direction: Literal["forward", "backward", "both"] = Field(
        default="forward", description="'both': each direction has half of the hidden features"
    )

    gate_names: ClassVar[tuple[str, ...]] = ("hidden",)
    """Names of the cell's input matrices, in the order of their rows; there are as many recurrent matrices."""
    leaves: ClassVar[int] = 1
    """Number of state vectors of a cell."""

    @property
    def growth(self) -> Growth:
        return RECURRENT

    @property
    def gates(self) -> int:
        """Number of input matrices of the cell: 1 (RNN), 3 (GRU) or 4 (LSTM)."""
        return len(self.gate_names)

    @property
    def causal(self) -> bool:
        return self.direction == "forward"

    def problems(self) -> list[Problem]:
        return self._halves(self.hidden, "hidden")

    def width_problems(self, width: int) -> list[Problem]:
        return [] if self.hidden else self._halves(width, "direction")

    def _halves(self, hidden: int | None, field: str) -> list[Problem]:
        if self.direction != "both" or hidden is None or hidden % 2 == 0:
            return []
        return [
            Problem(
                (field,), f"{hidden} hidden features cannot be split evenly into two directions; make the number even"
            )
        ]


class RNN(Recurrent, kind="rnn"):
    """Elman RNN: h_i = tanh(W x_i + U h_{i-1} + b), then a linear map to the width (1990)."""


class GRU(Recurrent, kind="gru"):
    """GRU: h_i = (1 - z) ⊙ n + z ⊙ h_{i-1} with reset and update gates, then a linear map (Cho et al. 2014)."""

    gate_names = ("reset", "update", "new")


class LSTM(Recurrent, kind="lstm"):
    """LSTM: m_i = f ⊙ m_{i-1} + i ⊙ g, h_i = o ⊙ tanh(m_i), then a linear map (Hochreiter & Schmidhuber 1997).

    The forget gate (Gers et al. 2000) has an initial bias of 1.
    """

    gate_names = ("input", "forget", "cell", "output")
    leaves: ClassVar[int] = 2


class FeedForward(Branch, kind="feed_forward"):
    """Feed-forward network φ(x W1 + b1) W2 + b2 at each position (Vaswani et al. 2017).

    ``activation`` "xielu": φ(x) = a x² + x/2 above 0, else b (e^x - 1 - x) + x/2, with learned a > 0 and b > 1/2 (Huang
    & Schlag 2024).
    """

    hidden: int | None = Field(default=None, gt=0, description="default: 4 width")
    activation: Activation | LearnedActivation = "gelu"
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def mixes(self) -> bool:
        return False

    def hidden_at(self, width: int) -> int:
        """Return the number of hidden features in a model of ``width`` features."""
        return self.hidden or 4 * width

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width), dropout=0.0)


class GatedFeedForward(Branch, kind="gated_feed_forward"):
    """Gated feed-forward network (φ(x Wg) ⊙ x Wu) Wd: GLU, ReGLU, GEGLU, SwiGLU by activation (Shazeer 2020).

    With ``limit`` c and ``shift`` s, the product is φ(min(x Wg, c)) ⊙ (clip(x Wu, -c, c) + s) (gpt-oss, 2025).
    ``norm`` normalises the product (sub-LN, Wang et al. 2022; BitNet, 2025). ``gate_factor`` c: φ(c x Wg) (Falcon-H1,
    2025).
    """

    hidden: int | None = Field(default=None, gt=0, description="default: 8/3 width, rounded up to a multiple of 32")
    activation: Activation = "silu"
    limit: float | None = Field(default=None, gt=0, description="bound of both factors' arguments; default: none")
    shift: float = Field(default=0.0, description="constant added to the factor without activation")
    gate_factor: float = Field(default=1.0, description="constant factor of the argument of the activation")
    norm: Norm = Field(default=NoNorm(), description="norm of the hidden features, before the output projection")
    bias: bool = False
    output_bias: bool | None = Field(default=None, description="bias of the output projection; default: as bias")
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def mixes(self) -> bool:
        return False

    @property
    def ends_with_bias(self) -> bool:
        """True if the output projection has a bias."""
        return self.bias if self.output_bias is None else self.output_bias

    def problems(self) -> list[Problem]:
        if not self.norm.over_batch:
            return []
        return [Problem(("norm",), "batch_norm normalises over positions; use layer_norm, rms_norm or none")]

    def hidden_at(self, width: int) -> int:
        return self.hidden or -(-8 * width // 3 // 32) * 32

    def canonical(self, width: int) -> Self:
        return self.changed(hidden=self.hidden_at(width), output_bias=self.ends_with_bias, dropout=0.0)
