"""Whisper: stacks of different depths, heads and widths inside, an odd number of positions."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import WhisperConfig, WhisperForCausalLM, WhisperForConditionalGeneration


def sizes(**changed: Any) -> dict[str, Any]:
    inside = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 40}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "decoder_start_token_id": 2}
    sound = {"num_mel_bins": 9, "max_source_positions": 11, "max_target_positions": 60}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "begin_suppress_tokens": None}
    return {"vocab_size": 61, "d_model": 30, "dropout": 0.2, **inside, **heads, **sound, **tokens, **changed}


def case(name: str, **changed: Any) -> Case:
    config = WhisperConfig(**sizes(**changed))
    return Case(name, WhisperForConditionalGeneration, config, computed=("encoder.embed_positions.weight",))


CASES = (
    case("whisper"),
    case(
        "whisper-distilled",
        encoder_layers=3,
        decoder_layers=1,
        decoder_attention_heads=5,
        activation_function="relu",
        attention_dropout=0.3,
    ),
    case("whisper-untied", tie_word_embeddings=False),
    Case("whisper-alone", WhisperForCausalLM, WhisperConfig(**sizes(is_decoder=True)), left=False),
)
