"""DAC (Kumar et al. 2023): convolutions with the Snake activation, and residual quantisation in few dimensions."""

from __future__ import annotations

from functools import partial
from typing import Any

from qkv.interop.families.sound.codecs import architecture, codec, parts, strides
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.models.quantizers import ProjectedQuantizer
from qkv.spec.signals.codecs import SeaNet, WaveDecoder, WaveEncoder
from qkv.system.errors import UserError

_STRIDES, _DILATIONS, _MOST = (2, 4, 8, 8), (1, 3, 9), 16
_STEP = len(_DILATIONS) + 2
"""Layers of a stage: residual units, activation and convolution."""
_UNIT = {0: "snake1", 1: "conv1", 2: "snake2", 3: "conv2"}


def network(config: Config, channels: int, last: int) -> SeaNet:
    """Build the network of the encoder or of the decoder from a config.

    ``channels``: features of the layer next to the waveform; ``last``: kernel size of the last convolution.
    """
    return SeaNet(
        channels=channels,
        strides=strides(config, "downsampling_ratios", _STRIDES),
        kernel=7,
        last_kernel=last,
        unit_kernel=7,
        dilations=_DILATIONS,
        narrowing=1,
        activation="snake",
        causal=False,
        ends="wave",
        norm="none",
    )


def head(config: Config) -> Head:
    """Build quantizer and decoder of a config. Raises ``UserError`` if the decoder's width cannot be halved."""
    halves, width = 2 ** len(strides(config, "downsampling_ratios", _STRIDES)), config.size("decoder_hidden_size", 1536)
    if width % halves:
        raise UserError(
            f"{config.source}: decoder_hidden_size is {width}, but the decoder's strides halve it; give a multiple of "
            f"{halves}"
        )
    quantizer = ProjectedQuantizer(
        codebooks=config.size("n_codebooks", 9),
        codes=config.size("codebook_size", 1024),
        code_width=config.size("codebook_dim", 8),
        dropout=config.number("quantizer_dropout", 0.0),
        commitment=config.number("commitment_loss_weight", 0.25),
    )
    return WaveDecoder(quantizer=quantizer, network=network(config, width // halves, 7), bounded=True)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config."""
    net = network(config, config.size("encoder_hidden_size", 64), 3)
    return codec(config, net.widest, net, head, 16_000)


def config(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of a spec; None if its structure is not that of DAC."""
    both = parts(spec)
    if both is None or not isinstance(both[1].quantizer, ProjectedQuantizer) or both[1].network is None:
        return None
    encoder, decoder, quantizer = both[0], both[1].network, both[1].quantizer
    return {
        "encoder_hidden_size": encoder.network.channels,
        "decoder_hidden_size": decoder.widest,
        "downsampling_ratios": list(encoder.network.strides),
        "n_codebooks": quantizer.codebooks,
        "codebook_size": quantizer.codes,
        "codebook_dim": quantizer.code_width,
        "quantizer_dropout": quantizer.dropout,
        "commitment_loss_weight": quantizer.commitment,
        "sampling_rate": encoder.rate,
    }


def _stages(spec: Model) -> int:
    assert isinstance(spec.frontend, WaveEncoder)
    return len(spec.frontend.network.strides)


def _has_stage(stage: int, spec: Model) -> bool:
    return stage < _stages(spec)


def _unit(ours: str, theirs: str) -> list[NameRule]:
    """Return the names of a residual unit."""
    steps = [
        NameRule(f"{ours}.steps.{i}.{ours_leaf}", f"{theirs}.{name}.{leaf}")
        for i, name in _UNIT.items()
        for ours_leaf, leaf in (("rate", "alpha"), ("*", "*"))
    ]
    return [row for row in steps if row.ours.endswith("rate") == ("snake" in row.published[0])]


def _encoder_stage(stage: int) -> list[NameRule]:
    ours, theirs, first = "frontend.network.layers", f"encoder.block.{stage}", 1 + stage * _STEP
    units = [row for i in range(3) for row in _unit(f"{ours}.{first + i}", f"{theirs}.res_unit{i + 1}")]
    return [
        *units,
        NameRule(f"{ours}.{first + 3}.rate", f"{theirs}.snake1.alpha"),
        NameRule(f"{ours}.{first + 4}.*", f"{theirs}.conv1.*"),
        NameRule(f"{ours}.{first + _STEP}.rate", "encoder.snake1.alpha"),
        NameRule(f"{ours}.{first + _STEP + 1}.*", "encoder.conv2.*"),
    ]


def _decoder_stage(stage: int) -> list[NameRule]:
    ours, theirs, first = "head.network.layers", f"decoder.block.{stage}", 1 + stage * _STEP
    units = [row for i in range(3) for row in _unit(f"{ours}.{first + 2 + i}", f"{theirs}.res_unit{i + 1}")]
    within = partial(_has_stage, stage)
    return [
        *units,
        NameRule(f"{ours}.{first}.rate", f"{theirs}.snake1.alpha", where=within),
        NameRule(f"{ours}.{first + 1}.*", f"{theirs}.conv_t1.*", where=within),
        NameRule(f"{ours}.{first + _STEP}.rate", "decoder.snake1.alpha", where=lambda spec: _stages(spec) == stage + 1),
        NameRule(f"{ours}.{first + _STEP + 1}.*", "decoder.conv2.*", where=lambda spec: _stages(spec) == stage + 1),
    ]


_BOOK, _PUBLISHED = "head.quantizer.books.{book}", "quantizer.quantizers.{book}"
NAMES = (
    NameRule("frontend.network.layers.0.*", "encoder.conv1.*"),
    NameRule("head.network.layers.0.*", "decoder.conv1.*"),
    *(row for stage in range(_MOST) for row in (*_encoder_stage(stage), *_decoder_stage(stage))),
    *(
        row
        for ours, theirs in (("into", "in_proj"), ("out", "out_proj"))
        for row in (
            NameRule(f"{_BOOK}.{ours}.weight", f"{_PUBLISHED}.{theirs}.weight", Broadcast(axis=-1)),
            NameRule(f"{_BOOK}.{ours}.bias", f"{_PUBLISHED}.{theirs}.bias"),
        )
    ),
    NameRule(f"{_BOOK}.vectors", f"{_PUBLISHED}.codebook.weight"),
)

DAC = Family(
    name="DAC",
    model_types=("dac",),
    architectures={"DacModel": architecture(head)},
    spec=spec,
    config=config,
    names=NAMES,
    extractor="DacFeatureExtractor",
    ignored_config={
        "codebook_loss_weight": "weight of a loss in training",
        **dict.fromkeys(("hidden_size", "hop_length", "upsampling_ratios"), "computed from other keys"),
    },
)

register(DAC)
