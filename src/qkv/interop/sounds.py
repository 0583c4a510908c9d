"""Conversion of processors of sound between qkv and ``preprocessor_config.json`` of published folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import PREPROCESSOR, PROCESSOR
from qkv.interop.mapping.config import Config
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.spec.signals.codecs import WaveEncoder
from qkv.spec.signals.sound import LogMel, Waveform
from qkv.system.errors import UserError

_IGNORED = (
    "feature_extractor_type",
    "processor_class",
    "mel_filters",  # computed
    "n_samples",
    "nb_max_frames",
    "padding_side",
    "padding_value",
    "return_attention_mask",
    "overlap",
    "hop_length",  # of a codec, the model's own
    "dither",  # noise of amplitude 0 in every published model
    "do_normalize",
)
"""Keys that do not affect the frames."""
_AST_MEAN, _AST_DEVIATION = -4.2677393, 4.5689974
"""Mean and deviation of the frames of AudioSet."""
_KALDI: dict[str, Any] = {
    "transform": 512,
    "shape": "symmetric_hann",
    "scale": "kaldi",
    "lowest": 20.0,
    "centre": False,
    "preemphasis": 0.97,
    "offset": True,
    "form": "log",
    "floor": 2.0**-23,
}
"""Settings of the filter bank of Kaldi (Povey et al. 2011), as AST has it."""
_NEMO: dict[str, Any] = {
    "shape": "symmetric_hann",
    "ends": "zeros",
    "form": "log",
    "floor": 2.0**-24,
    "normalise": "clip",
}
"""Settings of the frames of NeMo (Kuchaiev et al. 2019), as Parakeet has them."""
_HIGHEST = 8000.0
"""Highest frequency of Whisper's bands in Hz."""


def read_sound_processor(folder: Path, spec: Model) -> Processor | None:
    """Read the processor of the published ``folder`` for a model of ``spec``.

    Return None if the model reads no sound, or the folder has no processor. Raises ``UserError`` for a processor that
    qkv cannot reproduce exactly.
    """
    if not reads_sound(spec):
        return None
    config = _config(folder)
    if config is None:
        return None
    usual = "Wav2Vec2FeatureExtractor" if needed(spec) is Waveform else "WhisperFeatureExtractor"
    read: Callable[[Config], Processor] = config.word("feature_extractor_type", usual, _READERS)
    processor = read(config)
    config.leave_unread(_IGNORED)
    return processor


def reads_sound(spec: Model) -> bool:
    """Return True if a model of ``spec``, or its encoder, reads sound."""
    processor = needed(spec)
    return processor is not None and processor.of_sounds


def needed(spec: Model) -> type[Processor] | None:
    """Return the class of the processor that a model of ``spec``, or its encoder, reads; None for text."""
    return (spec.encoder or spec).frontend.processor


def _config(folder: Path) -> Config | None:
    """Read the settings of a feature extractor, which may be part of the file of a whole processor."""
    file = folder / PREPROCESSOR
    if file.is_file():
        return Config(read_json(file), str(file))
    file = folder / PROCESSOR
    table = read_json(file).get("feature_extractor") if file.is_file() else None
    return Config(table, f"{file}: feature_extractor") if isinstance(table, dict) else None


def _whisper(config: Config) -> LogMel:
    rate, size = config.size("sampling_rate", 16_000), config.size("n_fft", 400)
    config.fixed("dither", 0.0, "the samples")
    config.fixed("do_normalize", False, "the samples")
    return LogMel.parse(
        {
            "rate": rate,
            "seconds": float(config.size("chunk_length", 30)),
            "bins": config.size("feature_size", 80),
            "window": 1000 * size / rate,
            "hop": 1000 * config.size("hop_length", 160) / rate,
            "highest": None if rate == 2 * _HIGHEST else _HIGHEST,
        },
        config.source,
    )


def _codec(config: Config) -> Waveform:
    config.fixed("feature_size", 1, "the channels of the sound")
    config.fixed("chunk_length_s", None, "the chunks that a sound is divided into")
    return Waveform(rate=config.size("sampling_rate", 24_000), normalise=False)


def _ast(config: Config) -> LogMel:
    """Read the bands of Kaldi, in frames that are filled with 0 before they are normalised."""
    config.fixed("feature_size", 1, "the channels of the sound")
    mean, deviation = config.number("mean", _AST_MEAN), config.number("std", _AST_DEVIATION)
    normalise = config.flag("do_normalize", True)
    return LogMel(
        rate=config.size("sampling_rate", 16_000),
        bins=config.size("num_mel_bins", 128),
        length=config.size("max_length", 1024),
        longest=86_400.0,
        normalise="data" if normalise else "none",
        mean=(mean,) if normalise else None,
        deviation=(2 * deviation,) if normalise else None,
        **_KALDI,
    )


def _parakeet(config: Config) -> LogMel:
    """Read the frames of NeMo. Raises ``UserError`` for odd sizes, whose windows lie otherwise in other libraries."""
    rate = config.size("sampling_rate", 16_000)
    transform, window = config.size("n_fft", 512), config.size("win_length", 400)
    if transform % 2 or window % 2:
        raise UserError(
            f"{config.source}: n_fft is {transform} and win_length {window}, but qkv supports even numbers only"
        )
    return LogMel.parse(
        {
            "rate": rate,
            "bins": config.size("feature_size", 80),
            "window": 1000 * window / rate,
            "hop": 1000 * config.size("hop_length", 160) / rate,
            "transform": transform,
            "preemphasis": config.optional("preemphasis", 0.97) or 0.0,
            **_NEMO,
        },
        config.source,
    )


def _wav2vec2(config: Config) -> Waveform:
    config.fixed("feature_size", 1, "the samples")
    normalise = config.flag("do_normalize", True)
    return Waveform.parse({"rate": config.size("sampling_rate", 16_000), "normalise": normalise}, config.source)


_READERS: dict[str, Callable[[Config], Processor]] = {
    "WhisperFeatureExtractor": _whisper,
    "EncodecFeatureExtractor": _codec,
    "DacFeatureExtractor": _codec,
    "ASTFeatureExtractor": _ast,
    "ParakeetFeatureExtractor": _parakeet,
    "Wav2Vec2FeatureExtractor": _wav2vec2,
}
"""Readers of the settings of published feature extractors, by their class."""


def _written_waveform(processor: Waveform) -> dict[str, Any]:
    return {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor",
        "sampling_rate": processor.rate,
        "feature_size": 1,
        "do_normalize": processor.normalise,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }


def _written_codec(processor: Waveform, spec: Model, extractor: str) -> dict[str, Any] | None:
    """Build the settings of the extractor of a codec, which does not normalise; None for one that would have to."""
    if processor.normalise:
        return None
    keys = {key: value for key, value in _written_waveform(processor).items() if key != "do_normalize"}
    keys["feature_extractor_type"] = extractor
    if extractor == "DacFeatureExtractor" and isinstance(spec.frontend, WaveEncoder):
        return {**keys, "hop_length": spec.frontend.network.hop}
    return {**keys, "chunk_length_s": None, "overlap": None}


def written_sound_processor(processor: Processor | None, spec: Model, extractor: str = "") -> dict[str, Any] | None:
    """Build the contents of preprocessor_config.json for a processor of sound of a model of ``spec``.

    ``extractor``: class of the family's feature extractor if it is a codec, see ``Family.extractor``. Return None if no
    published feature extractor gives the same values.
    """
    if isinstance(processor, Waveform) and processor.rate is not None and processor.seconds is None:
        return _written_codec(processor, spec, extractor) if extractor else _written_waveform(processor)
    if not isinstance(processor, LogMel) or processor.rate is None:
        return None
    if processor.length is not None:
        return _written_ast(processor)
    return _written_parakeet(processor) if processor.seconds is None else _written_whisper(processor)


def _written_whisper(processor: LogMel) -> dict[str, Any] | None:
    assert processor.seconds is not None
    keys = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "sampling_rate": processor.rate,
        "chunk_length": round(processor.seconds),
        "feature_size": processor.bins,
        "n_fft": processor.frame,
        "hop_length": processor.step,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    return keys if _whisper(Config(keys)) == processor.changed(changes=(), longest=60.0) else None


def _written_parakeet(processor: LogMel) -> dict[str, Any] | None:
    keys = {
        "feature_extractor_type": "ParakeetFeatureExtractor",
        "sampling_rate": processor.rate,
        "feature_size": processor.bins,
        "n_fft": processor.size,
        "win_length": processor.frame,
        "hop_length": processor.step,
        "preemphasis": processor.preemphasis,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    even = processor.size % 2 == 0 == processor.frame % 2
    return keys if even and _parakeet(Config(keys)) == processor.changed(changes=(), longest=60.0) else None


def _written_ast(processor: LogMel) -> dict[str, Any] | None:
    keys: dict[str, Any] = {
        "feature_extractor_type": "ASTFeatureExtractor",
        "feature_size": 1,
        "sampling_rate": processor.rate,
        "num_mel_bins": processor.bins,
        "max_length": processor.length,
        "do_normalize": processor.mean is not None,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    if processor.mean is not None and processor.deviation is not None:
        keys |= {"mean": processor.mean[0], "std": processor.deviation[0] / 2}
    return keys if _ast(Config(keys)) == processor.changed(changes=()) else None
