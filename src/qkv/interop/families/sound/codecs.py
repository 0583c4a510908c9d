"""Common parts of neural codecs: rates, and the spec of a model that is an encoder, a quantizer and a decoder."""

from __future__ import annotations

from typing import Any

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
