"""Small checkpoints of families that read or write sound: sizes, arguments, and the outputs to compare.

``FAMILIES``: keys of a config, as in ``family_sizes``. Encoders, classifiers and recognisers are compared in whole
sounds and sounds of two lengths; models that write a text in one step after a prefill, too; codecs in their codes and
in the waveform of these codes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import qkv

Keys = dict[str, Any]
Form = tuple[str, Tensor, Tensor]
SAMPLES, FEWER = 1600, 1100
"""Samples of a waveform, and of a short one."""
FRAMES, FEWER_FRAMES = 64, 40
"""Frames of a spectrogram, and of a short one."""
TEXT_ALONE = "text alone"
"""Form of models that read sound of which qkv opens only the text model."""
WORDS = 9
"""Positions of the text that a model writes."""
ENCODERS = (
    "audio-spectrogram-transformer", "audioflamingo3_encoder", "data2vec-audio", "fun_asr_nano_encoder",
    "gemma3n_audio", "gemma4_audio", "glmasr_encoder", "granite_speech5_encoder", "hubert", "lasr_encoder",
    "moss_transcribe_diarize_audio", "muse_spark_audio", "nemotron3_diarization_audio",
    "nemotron_asr_streaming_encoder", "parakeet_encoder", "pe_audio_encoder", "qwen2_audio_encoder",
    "qwen3_asr_encoder", "sew", "sew-d", "unispeech", "unispeech-sat", "voxtral_encoder", "voxtral_realtime_encoder",
    "wav2vec2", "wav2vec2-bert", "wav2vec2-conformer", "wavlm",
)  # fmt: skip
"""Model types that map sound to vectors; transformers has no mapping of them."""
CODECS = ("encodec", "mimi", "xcodec")
"""Codecs beside those that transformers registers as tokenizers of sound."""
SPEAKERS = ("fastspeech2_conformer", "univnet")
"""Models of speech that make or read spectrograms, beside those that transformers registers for waveforms."""
_SEANET = {"num_filters": 4, "upsampling_ratios": [5, 2], "upsample_groups": 16, "codebook_dim": 16}
_SEMANTIC = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 2], "quantization_dim": 64}
_ACOUSTIC = {"num_filters": 4, "downsampling_ratios": [2, 5], "depths": [1, 2, 1], "hidden_size": 16}
FAMILIES: dict[str, Keys] = {
    "audio-spectrogram-transformer": {"max_length": FRAMES, "num_mel_bins": 32},
    "dac": {"encoder_hidden_size": 8, "decoder_hidden_size": 48, "downsampling_ratios": [2, 5], "codebook_dim": 6,
            "upsampling_ratios": [5, 2], "hidden_size": 32},
    "dia": {"delay_pattern": [0, 1]},
    "dia_decoder": {"num_channels": 2},
    "encodec": {"num_filters": 4, "upsampling_ratios": [5, 2], "hidden_size": 24, "codebook_dim": 24,
                "sampling_rate": 8000, "target_bandwidths": [4.0, 16.0]},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": 64}},
    "granite_speech5_encoder": {"subsample_layers": [0]},
    "kyutai_speech_to_text": {"audio_bos_token_id": 9, "audio_pad_token_id": 8, "codebook_vocab_size": 17},
    "mimi": _SEANET,
    "mimi_encoder": _SEANET,
    "mimi_decoder": _SEANET,
    "moonshine_streaming": {"num_key_value_heads": 2},
    "moonshine_streaming_encoder": {"sliding_windows": [[8, 2], [8, 0], [8, 0], [8, 2]]},
    "muse_spark_audio": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
    "nemo_speechlm": {"word_timestamp_config": {"blank_token_id": 159}},
    "neucodec": _SEMANTIC,
    "pocket_tts": {"flow_head_config": {"condition_dim": 64}},
    "pocket_tts_audio_tokenizer": _SEANET,
    "pop2piano": {"d_model": 64, "num_mel_bins": 64},
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
    "vibevoice_acoustic_tokenizer": _ACOUSTIC,
    "vibevoice_acoustic_tokenizer_decoder": _ACOUSTIC,
    "vibevoice_acoustic_tokenizer_encoder": _ACOUSTIC,
    "vibevoice_diffusion": {"latent_size": 16, "frequency_embedding_size": 32},
    "vits": {"noise_scale": 0.0, "noise_scale_duration": 0.0, "depth_separable_num_layers": 2, "spectrogram_bins": 17,
             "flow_size": 16, "ffn_dim": 48},
    "wav2vec2": {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},
    "wav2vec2-bert": {"vocab_size": 160},
    "wav2vec2-conformer": {"vocab_size": 160},
    "xcodec2": _SEMANTIC,
}  # fmt: skip
_SHAPES = ((FRAMES, 16), (16, FRAMES), (FRAMES, 32), (FRAMES, 80), (FRAMES, 160), (40, 560))
"""Shapes of the spectrograms of a row: (frames, bins), or (bins, frames) in Whisper."""


def sound_arguments(names: Container[str], generator: torch.Generator) -> list[Keys]:
    """Usual arguments of models that read sound: waveforms and spectrograms, with the start of a text, or a text alone.

    names: arguments of the model.
    """

    def numbers(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator)

    heard = [{"input_values": numbers(*shape)} for shape in ((SAMPLES,), (1, SAMPLES), (FRAMES, 32), (FRAMES, 16))]
    heard += [{"input_features": numbers(*shape)} for shape in _SHAPES]
    ids = torch.randint(4, 140, (2, WORDS), generator=generator)
    text = {"decoder_input_ids": ids} if "decoder_input_ids" in names else {}
    rate = {"bandwidth": 16.0} if "bandwidth" in names else {}
    with_mask = [{**each, "attention_mask": torch.ones(2, FRAMES)} for each in heard if "input_features" in each]
    plain = [{**each, **text, **rate} for each in (*heard, *with_mask)]
    return [*plain, *({"input_ids": ids, **each} for each in heard), {"input_ids": ids}]


def sound_forms(reference: Any, model: Any, consistent: Callable[..., Tensor | None]) -> Iterator[Form]:
    """Compare models that read sound: whole sounds, sounds of two lengths, one step of a text after a prefill.

    consistent: second of two outputs of transformers, if it does not contradict the first.
    """
    arguments, frontend = reference.arguments, (model.encoder or model).frontend
    name = next((each for each in ("input_values", "input_features") if each in arguments), "")
    if not name or not frontend.part.processor:
        yield from _text_alone(reference, model)
        return
    heard, ids = arguments[name], arguments.get("decoder_input_ids")
    turned = heard.dim() == 3 and _bins(frontend) == heard.shape[1] != heard.shape[2]

    def outputs(values: Tensor, lengths: Tensor | None = None) -> Tensor:
        signal = qkv.Signal(values.mT if turned else values, lengths=lengths)
        return model(signal)[0] if ids is None else model(qkv.Signal(ids), memory=model.encode(signal))[0]

    yield "whole sounds", reference.logits, outputs(heard)
    if not turned and "attention_mask" in inspect.signature(reference.model.forward).parameters:
        yield from _two_lengths(reference, name, outputs, frontend, consistent)
    if ids is not None:
        memory = model.encode(qkv.Signal(heard.mT if turned else heard))
        _, state = model(qkv.Signal(ids[:, :-1]), model.init_state(len(ids), memory=memory))
        yield "one step", reference.logits[:, -1], model(qkv.Signal(ids[:, -1:]), state)[0][:, -1]


def _two_lengths(
    reference: Any, name: str, outputs: Callable[..., Tensor], frontend: Any, consistent: Callable[..., Tensor | None]
) -> Iterator[Form]:
    """Compare the outputs of a short sound beside a long one. name: argument of the sound; outputs: those of qkv."""
    heard, theirs = reference.arguments[name], reference.model
    lengths = torch.tensor([SAMPLES, FEWER] if heard.dim() == 2 else [FRAMES, FEWER_FRAMES])
    mask = torch.arange(heard.shape[1]) < lengths[:, None]
    padded = heard.where(mask if heard.dim() == 2 else mask[..., None], 0)
    both = {**reference.arguments, name: padded, "attention_mask": mask.long()}
    single = {key: rows[1:] for key, rows in both.items()}
    single |= {key: single[key][:, : lengths[1]] for key in (name, "attention_mask")}
    result, real = outputs(padded, lengths)[1], frontend.lengths(qkv.Signal(padded, lengths=lengths))
    count = len(result)
    if real is not None and result.dim() == 2 and "decoder_input_ids" not in both:
        count = int(real[1])
    expected = consistent(
        reference, "padding", lambda: (answer(theirs(**single))[0][:count], answer(theirs(**both))[1][:count])
    )
    if expected is not None:
        yield "two lengths", expected, result[:count]


def _bins(frontend: Any) -> int:
    """Features of a frame that a front end of spectrograms reads."""
    return frontend.random(1, 1, torch.Generator()).values.shape[-1]


def _text_alone(reference: Any, model: Any) -> Iterator[Form]:
    """Compare the text model of a model that reads sound; qkv reads nothing else of it."""
    ids = torch.arange(5, 5 + WORDS)[None]
    paired = model.encoder is not None
    text = {"decoder_input_ids": ids} if paired else {}
    output = model(ids, memory=model.encode(ids))[0] if paired else model(ids)[0]
    yield TEXT_ALONE, answer(reference.model(input_ids=ids, **text)), output


def codec_forms(reference: Any, model: Any, consistent: object = None) -> Iterator[Form]:
    """Compare codecs: the codes of all codebooks (1: all differ), and the waveform that is decoded from them."""
    heard, output = reference.arguments["input_values"], reference.model(**reference.arguments)
    codes = output.audio_codes
    codes = (codes[0] if codes.dim() == 4 else codes).mT  # EnCodec divides some sounds into frames
    x, _ = model.features(qkv.Signal(heard.flatten(1)))
    ids = model.head.ids(x)
    same = ids.shape == codes.shape and (ids != codes).to(torch.float32).mean()
    yield "codes", torch.ones(1), torch.ones(1) + same if isinstance(same, Tensor) else torch.ones(2)
    wave = output.audio_values.flatten(1)
    yield "waveform", wave, model.head.samples(codes)[:, : wave.shape[1]]


ANSWERS = ("logits", "audio_values", "waveform", "logits_per_image", "logits_per_audio", "last_hidden_state")
"""Outputs of transformers, in the order in which they are compared."""


def answer(output: Any, names: Sequence[str] = ANSWERS) -> Tensor:
    """Output of transformers to compare: the first of ``names`` that is a tensor."""
    return next(output[name] for name in names if isinstance(output.get(name), Tensor))
