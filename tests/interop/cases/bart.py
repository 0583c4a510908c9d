"""BART and mBART: stacks of different depths, heads and widths inside, scaled token vectors, a head of its own."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import BartConfig, BartForConditionalGeneration, MBartConfig, MBartForConditionalGeneration


class UntiedBart(BartForConditionalGeneration):
    """With a head of its own alone; the library of today then gives each stack a table of its own too, which no published file has."""

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        return {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}


UntiedBart.__name__ = "BartForConditionalGeneration"


def sizes(**changed: Any) -> dict[str, Any]:
    inside = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "decoder_start_token_id": 2}
    given = {"vocab_size": 61, "d_model": 30, "max_position_embeddings": 80, "dropout": 0.2, **inside, **heads}
    return {**given, "bos_token_id": None, "eos_token_id": None, "forced_eos_token_id": None, **changed}


CASES = (
    Case("bart", BartForConditionalGeneration, BartConfig(**sizes())),
    Case(
        "bart-two-depths",
        BartForConditionalGeneration,
        BartConfig(
            **sizes(encoder_layers=1, decoder_layers=3, encoder_attention_heads=5, decoder_attention_heads=2),
            scale_embedding=True,
            activation_function="relu",
            attention_dropout=0.3,
        ),
    ),
    Case(
        "bart-untied",
        UntiedBart,
        BartConfig(**sizes(tie_word_embeddings=False, encoder_ffn_dim=17, decoder_ffn_dim=90, decoder_attention_heads=1)),
    ),
    Case("mbart", MBartForConditionalGeneration, MBartConfig(**sizes(decoder_layers=1, scale_embedding=True))),
)
