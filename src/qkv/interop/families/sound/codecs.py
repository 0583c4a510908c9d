"""Common parts of neural codecs: the convolutions, rates, and the spec of an encoder, a quantizer and a decoder."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.interop.families.images.stages import numbers
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NoNorm
from qkv.spec.signals.codecs import SeaNet, WaveDecoder, WaveEncoder


def strides(config: Config, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides in a config. Raises ``UserError``."""
    return numbers(config, key, default)


_PADDING = {"reflect": "reflect", "constant": "zeros", "replicate": "replicate"}


class Network(NamedTuple):
    """Defaults of a family's convolutional network, as EnCodec's (Défossez et al. 2022), by key of its config."""

    num_filters: int
    upsampling_ratios: tuple[int, ...]
    last_kernel_size: int
    use_conv_shortcut: bool
    pad_mode: str

    def read(self, config: Config, **fields: Any) -> SeaNet:
        """Build the network of a config; ``fields``: what the keys do not say. Raises ``UserError``."""
        growth = config.integer("dilation_growth_rate", 2)
        return SeaNet(
            channels=config.size("num_filters", self.num_filters),
            strides=strides(config, "upsampling_ratios", self.upsampling_ratios)[::-1],
            kernel=config.size("kernel_size", 7),
            last_kernel=config.size("last_kernel_size", self.last_kernel_size),
            unit_kernel=config.size("residual_kernel_size", 3),
            dilations=tuple(growth**i for i in range(config.integer("num_residual_layers", 1))),
            narrowing=config.size("compress", 2),
            shortcut=config.flag("use_conv_shortcut", self.use_conv_shortcut),
            causal=config.flag("use_causal_conv", True),
            ends="each",
            padding=config.word("pad_mode", self.pad_mode, _PADDING),
            **fields,
        )


def network_keys(net: SeaNet) -> dict[str, Any]:
    """Return the config keys of a network, which ``Network.read`` reads back."""
    return {
        "num_filters": net.channels,
        "upsampling_ratios": list(net.strides[::-1]),
        "kernel_size": net.kernel,
        "last_kernel_size": net.last_kernel,
        "residual_kernel_size": net.unit_kernel,
        "num_residual_layers": len(net.dilations),
        "dilation_growth_rate": net.dilations[1] if len(net.dilations) > 1 else 2,
        "compress": net.narrowing,
        "use_conv_shortcut": net.shortcut,
        "use_causal_conv": net.causal,
        "pad_mode": {ours: theirs for theirs, ours in _PADDING.items()}[net.padding],
    }


def network_names(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """Return the names of the convolutions of one network."""
    places = {
        "{layer}": "{layer}.conv",
        **{f"{{layer}}.steps.{i}": f"{{layer}}.block.{i}.conv" for i in (1, 3)},
        "{layer}.shortcut": "{layer}.shortcut.conv",
    }
    tensors = {
        "gain": "parametrizations.weight.original0",
        "direction": "parametrizations.weight.original1",
        "weight": "weight",
        "bias": "bias",
    }
    rows = [
        NameRule(f"{ours}.{place}.{name}", f"{theirs}.{published}.{tensor}")
        for place, published in places.items()
        for name, tensor in tensors.items()
    ]
    norms = [
        NameRule(f"{ours}.{place}.norm.*", f"{theirs}.{published.removesuffix('conv')}norm.*")
        for place, published in places.items()
    ]
    lstm = [
        NameRule(f"{ours}.{{layer}}.lstm.{kind}_{side}_l{{depth}}", f"{theirs}.{{layer}}.lstm.{kind}_{side}_l{{depth}}")
        for kind in ("weight", "bias")
        for side in ("ih", "hh")
    ]
    return (*rows, *norms, *lstm)


def codec(config: Config, width: int, net: SeaNet, head: Head, rate: int) -> Model:
    """Build the spec of a codec whose vectors have ``width`` features, for sound of ``rate`` Hz by default."""
    return Model(
        width=width,
        frontend=WaveEncoder(network=net, rate=config.integer("sampling_rate", rate)),
        blocks=(),
        norm=NoNorm(),
        head=head,
    )


def parts(spec: Model) -> tuple[WaveEncoder, WaveDecoder] | None:
    """Return (encoder, decoder) of a codec without blocks; None for another model."""
    plain = not spec.blocks and isinstance(spec.norm, NoNorm) and spec.encoder is None and spec.latents is None
    match spec.frontend, spec.head:
        case WaveEncoder(rate=int()) as encoder, WaveDecoder() as decoder if plain:
            return encoder, decoder
        case _:
            return None


def architecture(read: Any, names: tuple[NameRule, ...] = ()) -> Architecture:
    """Build the architecture of a codec; its keys are written by the family. ``read``: head of a config."""
    return Architecture(read, lambda head: {} if isinstance(head, WaveDecoder) else None, names)
