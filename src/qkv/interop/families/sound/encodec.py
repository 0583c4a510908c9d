"""EnCodec (Défossez et al. 2022): convolutions with an LSTM, and residual vector quantization."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

from qkv.interop.families.sound.codecs import Network, architecture, codec, network_keys, network_names, parts
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import WithConstant
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.models.quantizers import ResidualQuantizer
from qkv.spec.signals.codecs import SeaNet, WaveDecoder
from qkv.system.errors import UserError

_RATE = 24_000
_NETWORK = Network(32, (8, 5, 4, 2), last_kernel_size=7, use_conv_shortcut=True, pad_mode="reflect")
_BANDWIDTHS = (1.5, 3.0, 6.0, 12.0, 24.0)
_NORMS = {"weight_norm": "weight", "time_group_norm": "group"}


def network(config: Config) -> SeaNet:
    """Build the network that a config describes, for both the encoder and the decoder."""
    norm = config.word("norm_type", "weight_norm", _NORMS)
    return _NETWORK.read(config, lstm=config.integer("num_lstm_layers", 2), norm=norm)


def head(config: Config) -> Head:
    """Build quantizer and decoder of a config. Raises ``UserError`` for a bit rate below that of one codebook."""
    codes = config.size("codebook_size", 1024)
    rate, bandwidths = config.integer("sampling_rate", _RATE), config.items("target_bandwidths") or list(_BANDWIDTHS)
    net = network(config)
    each = ceil(rate / net.hop) * ceil(log2(codes))
    books = int(1000 * bandwidths[-1] // each) if isinstance(bandwidths[-1], int | float) else 0
    if books < 1:
        raise UserError(
            f"{config.source}: target_bandwidths end in {bandwidths[-1]!r} kbit/s, but one codebook takes "
            f"{each / 1000:g} kbit/s; give at least as many"
        )
    width = config.size("hidden_size", 128)
    config.fixed("codebook_dim", width, "the features of a code")
    return WaveDecoder(quantizer=ResidualQuantizer(codebooks=books, codes=codes), network=net)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config."""
    config.fixed("audio_channels", 1, "the channels of the sound, such as stereo")
    config.fixed("normalize", False, "the loudness of each chunk")
    config.fixed("chunk_length_s", None, "the chunks that a sound is divided into")
    config.fixed("overlap", None, "the chunks that a sound is divided into")
    config.fixed("trim_right_ratio", 1.0, "which outputs of the decoder are cut off")
    return codec(config, config.size("hidden_size", 128), network(config), head, _RATE)


def config(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of a spec; None if its structure differs."""
    both = parts(spec)
    if both is None or not isinstance(both[1].quantizer, ResidualQuantizer):
        return None
    net, quantizer, rate = both[0].network, both[1].quantizer, both[0].rate or _RATE
    each = ceil(rate / net.hop) * ceil(log2(quantizer.codes))
    numbers = sorted({1, *(quantizer.codebooks // 2**i for i in range(8) if quantizer.codebooks >= 2**i)})
    return {
        "hidden_size": spec.width,
        "codebook_dim": spec.width,
        "codebook_size": quantizer.codes,
        "sampling_rate": rate,
        "target_bandwidths": [number * each / 1000 for number in numbers],
        **network_keys(net),
        "num_lstm_layers": net.lstm,
        "norm_type": {ours: theirs for theirs, ours in _NORMS.items()}.get(net.norm),
        "audio_channels": 1,
        "normalize": False,
    }


_FILLED = WithConstant(1.0, what="the mark of a codebook with values", shape=(1,))
_BOOK, _PUBLISHED = "head.quantizer.books.{book}", "quantizer.layers.{book}.codebook"
NAMES = (
    *network_names("frontend.network.layers", "encoder.layers"),
    *network_names("head.network.layers", "decoder.layers"),
    NameRule(f"{_BOOK}.vectors", f"{_PUBLISHED}.embed"),
    NameRule(f"{_BOOK}.counts", (f"{_PUBLISHED}.cluster_size", f"{_PUBLISHED}.inited"), _FILLED),
    NameRule(f"{_BOOK}.sums", f"{_PUBLISHED}.embed_avg"),
)

ENCODEC = Family(
    name="EnCodec",
    model_types=("encodec",),
    architectures={"EncodecModel": architecture(head)},
    spec=spec,
    config=config,
    names=NAMES,
    extractor="EncodecFeatureExtractor",
    older={"conv.weight_g": "conv.parametrizations.weight.original0"}
    | {"conv.weight_v": "conv.parametrizations.weight.original1"},
)

register(ENCODEC)
