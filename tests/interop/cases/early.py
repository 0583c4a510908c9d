"""Early decoders: GPT, CTRL, and BERT for generation."""

from __future__ import annotations

from tests.interop.cases.case import Case
from transformers import (
    BertGenerationConfig,
    BertGenerationDecoder,
    CTRLConfig,
    CTRLForSequenceClassification,
    CTRLLMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

SIZES = {"vocab_size": 61, "n_positions": 80, "n_embd": 30, "n_layer": 2, "n_head": 3}
BERT = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5}

CASES = (
    Case("openai-gpt", OpenAIGPTLMHeadModel, OpenAIGPTConfig(**SIZES, afn="relu"), left=False),
    Case("ctrl", CTRLLMHeadModel, CTRLConfig(**SIZES, dff=44, layer_norm_epsilon=1e-3)),
    Case("ctrl-classes", CTRLForSequenceClassification, CTRLConfig(**SIZES, dff=44, num_labels=3, pad_token_id=1)),
    Case(
        "bert-generation",
        BertGenerationDecoder,
        BertGenerationConfig(**BERT, intermediate_size=44, max_position_embeddings=80, is_decoder=True),
    ),
)
