"""data2vec-audio, of small and unusual sizes; its relatives, with a weight in two parts, are in ``test_speech``."""

from __future__ import annotations

from tests.interop.cases.case import Case
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForCTC,
    Data2VecAudioModel,
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
CASES = (
    Case("wav2vec2-conformer-letters", Wav2Vec2ConformerForCTC, Wav2Vec2ConformerConfig(**_CONFORMER)),
    Case("wav2vec2-conformer-body", Wav2Vec2ConformerModel, Wav2Vec2ConformerConfig(**_CONFORMER, conv_bias=True)),
    Case("data2vec-audio-letters", Data2VecAudioForCTC, Data2VecAudioConfig(**_SIZES, conv_bias=True)),
    Case("data2vec-audio-body", Data2VecAudioModel, Data2VecAudioConfig(**_SIZES)),
)
