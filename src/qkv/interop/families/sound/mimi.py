"""Mimi (Défossez et al. 2024): EnCodec's convolutions, causal attention before and behind a quantizer in two parts."""

from __future__ import annotations

from math import ceil
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.sound.codecs import Network, architecture, network_keys, network_names
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Broadcast, MeanOfSums, WithConstant
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model
from qkv.spec.models.quantizers import SplitQuantizer
from qkv.spec.parts import LayerNorm, NoNorm, Scaled
from qkv.spec.signals.codecs import DecoderBlocks, SeaNet, WaveDecoder, WaveEncoder
from qkv.system.errors import UserError

_RATE = 24_000
_NETWORK = Network(64, (8, 6, 5, 4), last_kernel_size=3, use_conv_shortcut=False, pad_mode="constant")
_FRAME_RATES = "frame_rate", "_frame_rate"
"""Keys of the codes a second, in published files and as the library writes it."""


def network(config: Config) -> SeaNet:
    """Build the network that a config describes, for both the encoder and the decoder."""
    config.fixed("audio_channels", 1, "the channels of the sound, such as stereo")
    config.fixed("trim_right_ratio", 1.0, "which outputs of the decoder are cut off")
    return _NETWORK.read(config, norm="none")


def stride(config: Config) -> int:
    """Return the number of vectors for each code, from the rates. Raises ``UserError`` if there is no whole number."""
    rate, hop = config.integer("sampling_rate", _RATE), network(config).hop
    vectors, key = ceil(rate / hop), next(filter(config.has, _FRAME_RATES), _FRAME_RATES[0])
    codes = config.number(key, rate / (2 * hop))
    if not 0 < codes <= vectors / 2:
        raise UserError(
            f"{config.source}: {key} is {codes:g} codes a second, but it should be above 0 and at most half of the "
            f"{vectors} vectors a second of the convolutions"
        )
    return int(vectors / codes)


def _blocks(config: Config) -> dict[str, Any]:
    """Build the blocks that both the encoder and the decoder have."""
    attention = gated.attention_of(
        config, mask=gated.windowed(config.integer("sliding_window")), bias=config.flag("attention_bias", False)
    )
    attention = attention.changed(head_dim=attention.dims(config.size("hidden_size", 512))[0])
    feed_forward = FeedForward(
        hidden=config.size("intermediate_size"), activation=config.word("hidden_act", "gelu", INWARD), bias=False
    )
    block = Block(
        branches=(attention, feed_forward),
        norm=LayerNorm(eps=config.number("norm_eps", 1e-5)),
        residual=Scaled(initial=config.number("layer_scale_initial_scale", 0.01)),
    )
    return {"num_layers": config.layers("num_hidden_layers"), "blocks": (block,), "norm": NoNorm()}


def head(config: Config) -> Head:
    """Build quantizer and decoder of a config. Raises ``UserError`` for sizes that contradict each other."""
    width, inner = config.size("hidden_size", 512), config.size("vector_quantization_hidden_dimension", 256)
    config.fixed("codebook_dim", inner, "the features of a code")
    groups = config.size("upsample_groups", 512)
    if width % groups:
        raise UserError(f"{config.source}: upsample_groups is {groups}, but it should divide hidden_size, {width}")
    quantizer = SplitQuantizer(
        codebooks=config.size("num_quantizers", 32),
        semantic=config.size("num_semantic_quantizers", 1),
        codes=config.size("codebook_size", 2048),
        code_width=None if inner == width else inner,
    )
    return WaveDecoder(
        quantizer=quantizer,
        network=network(config),
        stride=stride(config),
        groups=groups,
        decoder=DecoderBlocks(**_blocks(config)),
    )


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config."""
    return Model(
        width=config.size("hidden_size", 512),
        context_length=config.size("max_position_embeddings"),
        frontend=WaveEncoder(network=network(config), rate=config.integer("sampling_rate", _RATE)),
        head=head,
        init_std=config.number("initializer_range", 0.02),
        **_blocks(config),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of a spec; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:1], spec.frontend, spec.head:
        case (
            (Block(branches=(Attention() as attention, FeedForward() as second), residual=Scaled() as scale) as block,),
            WaveEncoder() as encoder,
            WaveDecoder(quantizer=SplitQuantizer() as quantizer) as decoder,
        ) if isinstance(block.norm, LayerNorm):
            pass
        case _:
            return None
    net, rope = encoder.network, gated.rope_keys(spec)
    if rope is None:
        return None
    inner = quantizer.code_width or spec.width
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "intermediate_size": second.hidden_at(spec.width),
        "hidden_act": OUTWARD.get(second.activation),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.dims(spec.width)[0],
        "attention_bias": attention.bias,
        "attention_dropout": attention.dropout,
        "sliding_window": gated.window_of(attention),
        "norm_eps": block.norm.eps,
        "layer_scale_initial_scale": scale.initial,
        "initializer_range": spec.init_std,
        "max_position_embeddings": spec.context_length,
        "codebook_size": quantizer.codes,
        "codebook_dim": inner,
        "vector_quantization_hidden_dimension": inner,
        "num_quantizers": quantizer.codebooks,
        "num_semantic_quantizers": quantizer.semantic,
        "upsample_groups": decoder.groups,
        **rope,
        **_rates(encoder.rate or _RATE, net.hop, decoder.stride),
        **network_keys(net),
    }


def _rates(rate: int, hop: int, stride: int) -> dict[str, Any]:
    """Return the keys of the rates, from which ``stride`` follows."""
    vectors = ceil(rate / hop)
    usual = int(vectors / (rate / (2 * hop))) == stride
    return {"sampling_rate": rate, **({} if usual else {"frame_rate": vectors / (stride + 0.25)})}


def _block_names(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """Return the names of the blocks on one side of the quantizer."""
    branch, layer = f"{ours}blocks.{{layer}}.branches", f"{theirs}_transformer.layers.{{layer}}"
    attention = f"{layer}.self_attn"
    return (
        NameRule(f"{branch}.0.norm.*", f"{layer}.input_layernorm.*"),
        NameRule(f"{branch}.1.norm.*", f"{layer}.post_attention_layernorm.*"),
        NameRule(f"{branch}.0.body.qkv.*", tuple(f"{attention}.{each}_proj.*" for each in "qkv"), QKV),
        NameRule(f"{branch}.0.body.output.*", f"{attention}.o_proj.*"),
        NameRule(f"{branch}.0.residual.weight", f"{layer}.self_attn_layer_scale.scale"),
        NameRule(f"{branch}.1.body.up.*", f"{layer}.mlp.fc1.*"),
        NameRule(f"{branch}.1.body.down.*", f"{layer}.mlp.fc2.*"),
        NameRule(f"{branch}.1.residual.weight", f"{layer}.mlp_layer_scale.scale"),
    )


_FILLED = WithConstant(1.0, what="the mark of a codebook with values", shape=(1,))


def _quantizer_names(part: str) -> tuple[NameRule, ...]:
    """Return the names of one part of the quantizer. Its codes are published as sums and numbers of vectors."""
    ours, theirs = f"head.quantizer.{part}", f"quantizer.{part}_residual_vector_quantizer"
    book, codebook = f"{ours}.books.{{book}}", f"{theirs}.layers.{{book}}.codebook"
    return (
        NameRule(f"{ours}.into.weight", f"{theirs}.input_proj.weight", Broadcast(axis=-1)),
        NameRule(f"{ours}.out.weight", f"{theirs}.output_proj.weight", Broadcast(axis=-1)),
        NameRule(f"{book}.vectors", (f"{codebook}.embed_sum", f"{codebook}.cluster_usage"), MeanOfSums()),
        NameRule(f"{book}.counts", (f"{codebook}.cluster_usage", f"{codebook}.initialized"), _FILLED),
        NameRule(f"{book}.sums", f"{codebook}.embed_sum"),
    )


NAMES = (
    *network_names("frontend.network.layers", "encoder.layers"),
    *network_names("head.network.layers", "decoder.layers"),
    *_block_names("", "encoder"),
    *_block_names("head.stack.", "decoder"),
    NameRule("head.down.weight", "downsample.conv.weight"),
    NameRule("head.up.weight", "upsample.conv.weight"),
    *_quantizer_names("semantic"),
    *_quantizer_names("acoustic"),
)

MIMI = Family(
    name="Mimi",
    model_types=("mimi",),
    architectures={"MimiModel": architecture(head)},
    spec=spec,
    config=config,
    names=NAMES,
    extractor="EncodecFeatureExtractor",
    typical={"num_semantic_quantizers": 1},
    defaults={
        "num_hidden_layers": 8,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 8000,
        "sliding_window": 250,
    },
    ignored_config={
        "normalize": "not read by the published code",
        "use_streaming": "form of a call",
        "tie_word_embeddings": "there are no words",
    },
)

register(MIMI)
