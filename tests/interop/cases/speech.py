"""Models that read sound: their text models, with and without a tied head; the encoder of speech stays unread."""

from __future__ import annotations

from typing import Any

import transformers
from tests.interop.cases.case import Case


class Within(dict[str, str]):
    """What classes call the parameters that files hold under the names of earlier versions."""

    def get(self, name: str, default: Any = None) -> Any:
        inner = name.replace("language_model.model.", "model.language_model.")
        return inner.replace("language_model.lm_head.", "lm_head.") if name.startswith("language_model.") else default


def text(model_type: str, **changed: Any) -> dict[str, Any]:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 44}
    given = {"vocab_size": 61, "hidden_size": 24, "max_position_embeddings": 80, "pad_token_id": 1, **heads}
    return {"model_type": model_type, "bos_token_id": None, "eos_token_id": None, **given, **changed}


WHISPER = {"num_mel_bins": 8, "max_source_positions": 20}
LAYERS = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 20, "d_model": 16, **WHISPER}
NUMBERED = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "hidden_size": 16,
    **WHISPER,
}
QFORMER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
CONFORMER = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8, "input_dim": 8, "context_size": 10}
GRANITE = {
    "text_config": text("granite", embedding_multiplier=3.0, residual_multiplier=0.7, attention_multiplier=0.2),
    "encoder_config": {**CONFORMER, "output_dim": 6, "max_pos_emb": 20},
    "projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 16, **QFORMER},
    "audio_token_index": 2,
}
CODEC = {"num_filters": 4, "downsampling_ratios": [2, 4], "depths": [1, 1, 2], "hidden_size": 16}


def case(name: str, stem: str, renamed: bool, **parts: Any) -> Case:
    config = getattr(transformers, f"{stem}Config")(**parts)
    kind = getattr(transformers, f"{stem}ForConditionalGeneration")
    return Case(name, kind, config, renamed=Within() if renamed else {})


CASES = (
    case(
        "qwen2-audio",
        "Qwen2Audio",
        True,
        text_config=text("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
        audio_config=LAYERS,
        audio_token_index=2,
    ),
    case(
        "audio-flamingo",
        "AudioFlamingo3",
        True,
        text_config=text("qwen2"),
        audio_config={"model_type": "audioflamingo3_encoder", **NUMBERED},
        audio_token_id=2,
    ),
    case(
        "music-flamingo",
        "MusicFlamingo",
        True,
        text_config=text("qwen2"),
        audio_config={"model_type": "audioflamingo3_encoder", **NUMBERED},
        audio_token_id=2,
    ),
    case(
        "vibevoice-asr",
        "VibeVoiceAsr",
        True,
        text_config=text("qwen2"),
        acoustic_tokenizer_encoder_config={"model_type": "vibevoice_acoustic_tokenizer_encoder", **CODEC},
        semantic_tokenizer_encoder_config={"model_type": "vibevoice_acoustic_tokenizer_encoder", **CODEC},
        audio_token_id=2,
    ),
    case(
        "voxtral",
        "Voxtral",
        True,
        text_config=text("llama", head_dim=8, rms_norm_eps=1e-3),
        audio_config={"model_type": "voxtral_encoder", **NUMBERED},
        audio_token_id=2,
    ),
    case(
        "glm-asr",
        "GlmAsr",
        True,
        text_config=text("llama"),
        audio_config={"model_type": "glmasr_encoder", **NUMBERED},
        audio_token_id=2,
    ),
    case("granite-speech", "GraniteSpeech", True, **GRANITE),
    case("granite-speech-plus", "GraniteSpeechPlus", True, tie_word_embeddings=False, **GRANITE),
    case(
        "qwen3-asr",
        "Qwen3ASR",
        False,
        text_config=text("qwen3", head_dim=8),
        audio_config={"downsample_hidden_size": 8, "output_dim": 24, "n_window": 4, **LAYERS},
        audio_token_id=2,
    ),
    case(
        "moss-transcribe",
        "MossTranscribeDiarize",
        False,
        text_config=text("qwen3", head_dim=8),
        audio_config=NUMBERED,
        audio_token_id=2,
        tie_word_embeddings=False,
    ),
)
