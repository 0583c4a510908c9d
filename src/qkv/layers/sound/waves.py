"""Convolutions between waveforms and vectors: encoder and decoder of neural codecs (SEANet, Défossez et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.layout import WHOLE, Declared, Layouts
from qkv.ops.at_least_single import at_least_single
from qkv.spec.signals.codecs import SeaNet

LOUDNESS = 0.1
"""Usual root mean square of recordings. Networks begin with vectors of unit variance for such a waveform."""
_EPS = 1e-5
_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate"}


def padded_wave(x: Tensor, left: int, right: int, padding: str) -> Tensor:
    """Pad x (B, C, T) along the last axis; ``reflect`` first extends rows that are too short by zeros."""
    if padding != "reflect":
        return F.pad(x, (left, right), _MODES[padding])
    missing = max(0, max(left, right) - x.shape[-1] + 1)
    wide = F.pad(F.pad(x, (0, missing)), (left, right), "reflect")
    return wide[..., : wide.shape[-1] - missing]


class WaveConvolution(Declared):
    """Convolution (B, C, T) -> (B, E, ⌈T / stride⌉), with padding before the first sample and after the last.

    Causal: all (K - 1) dilation + 1 - stride samples of padding before the first; else half of them after the last.
    The last output is completed by more padding on the right. ``transposed``: (B, C, T) -> (B, E, T · stride), without
    the outputs of the padding. Weights: w, or with norm ``weight`` g v / |v| for each first index.
    """

    def __init__(
        self, net: SeaNet, sizes: tuple[int, int], kernel: int, stride: int = 1, dilation: int = 1, bias: bool = True
    ):
        """Build the convolution. ``sizes``: features C and E."""
        super().__init__()
        self.net, self.stride, self.dilation = net, stride, dilation
        self.span = (kernel - 1) * dilation + 1 - stride
        shape = self._shape(*sizes, kernel)
        named = "direction" if net.norm == "weight" else "weight"
        self.register_parameter(named, nn.Parameter(torch.empty(shape)))
        self.gain = nn.Parameter(torch.empty(shape[0], 1, 1)) if net.norm == "weight" else None
        self.bias = nn.Parameter(torch.zeros(sizes[1])) if bias else None
        self.norm = nn.GroupNorm(1, sizes[1], eps=_EPS) if net.norm == "group" else None

    def _shape(self, inputs: int, outputs: int, kernel: int) -> tuple[int, int, int]:
        return outputs, inputs, kernel

    def layouts(self) -> Layouts:
        return {name: WHOLE for name, _ in self.named_parameters()}

    @property
    def num_read(self) -> int:
        """Number of inputs that an output is the sum of."""
        weight = self._weight
        return weight.shape[1] * weight.shape[2]

    @property
    def _weight(self) -> Tensor:
        return self.weight if self.gain is None else self.direction  # type: ignore[return-value]

    def initialise(self, scale: float = 1.0) -> None:
        """Initialise the weights so that outputs have ``scale`` times the deviation of inputs, and the biases by 0."""
        nn.init.normal_(self._weight, std=self.num_read**-0.5 * scale)
        if self.gain is not None:
            self.gain.data.copy_(self._length(self._weight))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @staticmethod
    def _length(weight: Tensor) -> Tensor:
        return torch.linalg.vector_norm(at_least_single(weight), dim=(1, 2), keepdim=True)

    def matrix(self) -> Tensor:
        """Return the weights w."""
        if self.gain is None:
            return self.weight  # type: ignore[return-value]
        direction: Tensor = self.direction  # type: ignore[assignment]
        return self.gain * direction / self._length(direction).to(direction.dtype)

    def forward(self, x: Tensor) -> Tensor:
        after = 0 if self.net.causal else self.span // 2
        rest = -x.shape[-1] % self.stride
        x = padded_wave(x, self.span - after, after + rest, self.net.padding)
        return self._normed(F.conv1d(x, self.matrix(), self.bias, self.stride, dilation=self.dilation))

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransposedWaveConvolution(WaveConvolution):
    """Transposed convolution (B, C, T) -> (B, E, T · stride) of 2 · stride taps; for some nets
    without the last output, see ``SeaNet.ends``.
    """

    def __init__(self, net: SeaNet, sizes: tuple[int, int], stride: int, groups: int = 1, bias: bool = True):
        self.groups = groups
        super().__init__(net, sizes, 2 * stride, stride, bias=bias)

    def _shape(self, inputs: int, outputs: int, kernel: int) -> tuple[int, int, int]:
        return inputs, outputs // self.groups, kernel

    @property
    def num_read(self) -> int:
        return 2 * self._weight.shape[0] // self.groups  # of the taps, every stride-th reaches an output

    def forward(self, x: Tensor) -> Tensor:
        shorter = self.stride % 2 if self.net.ends == "wave" and not self.net.causal else 0
        count = x.shape[-1] * self.stride - shorter
        y = self._normed(F.conv_transpose1d(x, self.matrix(), self.bias, self.stride, groups=self.groups))
        before = 0 if self.net.causal else self.stride - self.stride // 2
        return y[..., before : before + count]


class WaveElu(nn.Module):
    """Activation x for x > 0, else e^x - 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x)


class Snake(Declared):
    """Activation x + sin²(a x) / a of x (B, C, T), with a learned for each feature (Ziyin et al. 2020)."""

    def __init__(self, features: int):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(1, features, 1))

    def layouts(self) -> Layouts:
        return {"rate": WHOLE}

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.rate + 1e-9).reciprocal() * (self.rate * x).sin().square()


def build_wave_activation(net: SeaNet, features: int) -> nn.Module:
    """Build the activation of a network for ``features`` features."""
    return Snake(features) if net.activation == "snake" else WaveElu()


class ResidualUnit(nn.Module):
    """Residual unit x + f(x), or W x + f(x): see ``SeaNet``."""

    def __init__(self, net: SeaNet, features: int, dilation: int):
        super().__init__()
        hidden = features // net.narrowing
        self.steps = nn.ModuleList(
            (
                build_wave_activation(net, features),
                WaveConvolution(net, (features, hidden), net.unit_kernel, dilation=dilation),
                build_wave_activation(net, hidden),
                WaveConvolution(net, (hidden, features), 1),
            )
        )
        self.shortcut = WaveConvolution(net, (features, features), 1) if net.shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for step in self.steps:
            y = step(y)
        return y + (x if self.shortcut is None else self.shortcut(x))


class WaveMemory(Declared):
    """LSTM over vectors, x + LSTM(x), (B, C, T) -> (B, C, T)."""

    def __init__(self, features: int, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(features, features, layers, batch_first=True)

    def layouts(self) -> Layouts:
        return {f"lstm.{name}": WHOLE for name, _ in self.lstm.named_parameters()}

    def initialise(self) -> None:
        """Initialise the weights uniformly in ±1/√C, and the biases by 0."""
        bound = self.lstm.hidden_size**-0.5
        for parameter in self.lstm.parameters():
            if parameter.dim() == 2:
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.lstm(x.mT)[0].mT


class WaveLayers(nn.Module):
    """Layers of a network in order; see ``encoder_layers`` and ``decoder_layers``."""

    def __init__(self, layers: Iterator[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def initialise(self, first: float = 1.0, last: float = 1.0) -> None:
        """Initialise the weights; outputs of the first and the last layer are ``first`` and ``last`` times as large."""
        for module in self.modules():
            if isinstance(module, WaveConvolution | WaveMemory):
                module.initialise()
        for layer, scale in ((self.layers[0], first), (self.layers[-1], last)):
            assert isinstance(layer, WaveConvolution)
            layer.initialise(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to x (B, C, T)."""
        for layer in self.layers:
            x = layer(x)
        return x


def encoder_layers(net: SeaNet, width: int) -> Iterator[nn.Module]:
    """Yield the layers of the encoder: waveform (B, 1, T) -> vectors (B, ``width``, N)."""
    features = net.channels
    yield WaveConvolution(net, (1, features), net.kernel)
    for stride in net.strides:
        yield from (ResidualUnit(net, features, dilation) for dilation in net.dilations)
        yield build_wave_activation(net, features)
        yield WaveConvolution(net, (features, 2 * features), 2 * stride, stride)
        features *= 2
    if net.lstm:
        yield WaveMemory(features, net.lstm)
    yield build_wave_activation(net, features)
    yield WaveConvolution(net, (features, width), net.last_kernel)


def decoder_layers(net: SeaNet, width: int) -> Iterator[nn.Module]:
    """Yield the layers of the decoder: vectors (B, ``width``, N) -> waveform (B, 1, N · hop)."""
    features = net.widest
    yield WaveConvolution(net, (width, features), net.kernel)
    if net.lstm:
        yield WaveMemory(features, net.lstm)
    for stride in reversed(net.strides):
        yield build_wave_activation(net, features)
        yield TransposedWaveConvolution(net, (features, features // 2), stride)
        features //= 2
        yield from (ResidualUnit(net, features, dilation) for dilation in net.dilations)
    yield build_wave_activation(net, features)
    yield WaveConvolution(net, (features, 1), net.last_kernel)
