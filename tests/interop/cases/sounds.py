"""Models of sound, of small and unusual sizes; those with a weight in two parts are in ``test_speech``."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForCTC,
    Data2VecAudioModel,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    ParakeetCTCConfig,
    ParakeetEncoder,
    ParakeetEncoderConfig,
    ParakeetForCTC,
    Wav2Vec2ConformerConfig,
    Wav2Vec2ConformerForCTC,
    Wav2Vec2ConformerModel,
)

SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
    "conv_dim": [6, 6, 8],
    "conv_kernel": [7, 3, 2],
    "conv_stride": [4, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 6,
    "vocab_size": 9,
    "mask_time_prob": 0.0,
}
_SIZES = {**SIZES, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 5}
_CONFORMER = {**SIZES, "conv_depthwise_kernel_size": 5, "hidden_act": "swish", "mask_time_prob": 0.05}
MOONSHINE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 22,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
}
_MOONSHINE_BIASED: dict[str, Any] = {
    **MOONSHINE,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "encoder_hidden_act": "relu",
    "decoder_hidden_act": "gelu_new",
    "pad_head_dim_to_multiple_of": 5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
PARAKEET: dict[str, Any] = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 6,
    "num_mel_bins": 16,
}
_PARAKEET_BARE: dict[str, Any] = {
    **PARAKEET,
    "attention_bias": False,
    "convolution_bias": False,
    "hidden_act": "relu",
    "scale_input": False,
    "subsampling_factor": 4,
    "subsampling_conv_kernel_size": 5,
}
CASES = (
    Case("wav2vec2-conformer-letters", Wav2Vec2ConformerForCTC, Wav2Vec2ConformerConfig(**_CONFORMER)),
    Case("wav2vec2-conformer-body", Wav2Vec2ConformerModel, Wav2Vec2ConformerConfig(**_CONFORMER, conv_bias=True)),
    Case("data2vec-audio-letters", Data2VecAudioForCTC, Data2VecAudioConfig(**_SIZES, conv_bias=True)),
    Case("data2vec-audio-body", Data2VecAudioModel, Data2VecAudioConfig(**_SIZES)),
    Case("moonshine", MoonshineForConditionalGeneration, MoonshineConfig(**MOONSHINE)),
    Case("moonshine-biased", MoonshineForConditionalGeneration, MoonshineConfig(**_MOONSHINE_BIASED)),
    Case(
        "parakeet-pieces",
        ParakeetForCTC,
        ParakeetCTCConfig(vocab_size=11, pad_token_id=10, encoder_config=PARAKEET),
    ),
    Case(
        "parakeet-pieces-bare",
        ParakeetForCTC,
        ParakeetCTCConfig(vocab_size=11, pad_token_id=3, encoder_config=_PARAKEET_BARE),
    ),
    Case("parakeet-body", ParakeetEncoder, ParakeetEncoderConfig(**PARAKEET)),
)
