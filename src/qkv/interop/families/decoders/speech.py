"""Text models of models that read sound: decoders of Llama, Qwen and Granite beside an encoder of speech."""

from __future__ import annotations

from qkv.interop.families.common.text_part import TextPart
from qkv.interop.families.decoders.llama import LLAMA
from qkv.interop.families.decoders.multipliers.granite import GRANITE
from qkv.interop.families.decoders.qwen2 import QWEN2
from qkv.interop.families.decoders.qwen3 import QWEN3
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import Reasons
from qkv.interop.registry import register

_FIRST = {"model.": "language_model.model."}
"""Names of files whose text model has a head of its own."""
_WITHIN = {"model.": "model.language_model."}
_HEAD = "language_model.lm_head.weight"


def _speech(*prefixes: str) -> Reasons:
    return dict.fromkeys(
        (f"{prefix}.*" for prefix in prefixes), "part of the encoder of speech, which qkv does not read"
    )


_TOWER = _speech("audio_tower", "multi_modal_projector")
_TOWER_WITHIN = _speech("model.audio_tower", "model.multi_modal_projector")
_QFORMER = _speech("encoder", "projector")
_TOKEN = {"audio_token_id": "audio_token_index"}
_PROJECTOR = ("audio_config", "projector_hidden_act")

QWEN2_AUDIO = TextPart(QWEN2, _FIRST, _TOWER, ("audio_config", "audio_token_index"), _HEAD, synonyms=_TOKEN).family(
    "Qwen2-Audio", "qwen2_audio", "Qwen2AudioForConditionalGeneration"
)
FLAMINGO = TextPart(QWEN2, _FIRST, _TOWER, (*_PROJECTOR, "audio_token_id", "projector_bias"), _HEAD).family(
    "Audio Flamingo 3", "audioflamingo3", "AudioFlamingo3ForConditionalGeneration"
)
_MUSIC = ("audio_bos_token_id", "audio_eos_token_id", "audio_frame_step", "rope_parameters", "head_dim")
MUSIC = TextPart(
    QWEN2, _FIRST, _TOWER, (*_PROJECTOR, "audio_token_id", "projector_bias", *_MUSIC, "max_position_embeddings"), _HEAD
).family("Music Flamingo", "musicflamingo", "MusicFlamingoForConditionalGeneration")
VIBEVOICE = TextPart(
    QWEN2,
    _FIRST,
    _speech("acoustic_tokenizer_encoder", "semantic_tokenizer_encoder", "multi_modal_projector"),
    (
        "acoustic_tokenizer_encoder_config",
        "semantic_tokenizer_encoder_config",
        "acoustic_tokenizer_chunk_size",
        "audio_token_id",
        "audio_bos_token_id",
        "audio_eos_token_id",
    ),
    _HEAD,
).family("VibeVoice ASR", "vibevoice_asr", "VibeVoiceAsrForConditionalGeneration")
VOXTRAL = TextPart(
    LLAMA,
    _FIRST,
    _TOWER,
    (*_PROJECTOR, "audio_token_id"),
    _HEAD,
    defaults={
        "vocab_size": 131072,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000000.0,
        "head_dim": 128,
    },
).family("Voxtral", "voxtral", "VoxtralForConditionalGeneration")
GLM_ASR = TextPart(
    LLAMA,
    _FIRST,
    _TOWER,
    (*_PROJECTOR, "audio_token_id"),
    _HEAD,
    tied=True,
    defaults={
        "vocab_size": 59264,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    },
).family("GLM-ASR", "glmasr", "GlmAsrForConditionalGeneration")


def _granite(name: str, kind: str, model_type: str) -> Family:
    """Build a family of Granite Speech, whose logits are not divided, unlike Granite's."""
    keys = ("encoder_config", "projector_config", "audio_token_index", "has_lora_adapter", "downsample_rate")
    keys = (*keys, "window_size", "initializer_range")
    part = TextPart(GRANITE, _FIRST, _QFORMER, keys, _HEAD, tied=True, synonyms=_TOKEN)
    return part.family(name, model_type, f"{kind}ForConditionalGeneration")


GRANITE_SPEECH = _granite("Granite Speech", "GraniteSpeech", "granite_speech")
GRANITE_SPEECH_PLUS = _granite("Granite Speech Plus", "GraniteSpeechPlus", "granite_speech_plus")
_QWEN3_SIZES = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
QWEN3_ASR = TextPart(
    QWEN3,
    _WITHIN,
    _TOWER_WITHIN,
    ("audio_config", "audio_token_id", "timestamp_token_id", "token_classification_bias", "initializer_range"),
    tied=True,
    defaults={
        **_QWEN3_SIZES,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "head_dim": 128,
        "max_position_embeddings": 65536,
    },
).family("Qwen3-ASR", "qwen3_asr", "Qwen3ASRForConditionalGeneration")
MOSS = TextPart(
    QWEN3,
    _WITHIN,
    _TOWER_WITHIN,
    (*_PROJECTOR, "audio_token_id", "projector_bias", "audio_merge_size", "audio_chunk_size"),
    tied=True,
    defaults={
        **_QWEN3_SIZES,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
    },
).family("MOSS Transcribe-Diarize", "moss_transcribe_diarize", "MossTranscribeDiarizeForConditionalGeneration")

register(
    QWEN2_AUDIO,
    FLAMINGO,
    MUSIC,
    VIBEVOICE,
    VOXTRAL,
    GLM_ASR,
    GRANITE_SPEECH,
    GRANITE_SPEECH_PLUS,
    QWEN3_ASR,
    MOSS,
)
