"""Encoder–decoders with windows in the encoder: LED and LongT5, of rows longer and shorter than the window."""

from __future__ import annotations

from tests.interop.cases.case import Case
from transformers import LEDConfig, LEDForConditionalGeneration, LongT5Config, LongT5ForConditionalGeneration

LED = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 28,
    "max_encoder_position_embeddings": 43,
    "max_decoder_position_embeddings": 80,
    "attention_window": [4, 6],
}
LONG_T5 = {"vocab_size": 61, "d_model": 24, "d_kv": 7, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 1}

CASES = (
    Case("led", LEDForConditionalGeneration, LEDConfig(**LED), lengths=(19, 1, 12), steps=8),
    Case(
        "longt5-gated",
        LongT5ForConditionalGeneration,
        LongT5Config(**LONG_T5, num_heads=3, local_radius=4, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        lengths=(19, 1, 12),
        steps=8,
    ),
)
