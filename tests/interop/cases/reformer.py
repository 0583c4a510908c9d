"""Reformers. A test row is as long as their grid of positions, as that library asks in training, in whole chunks."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import ReformerConfig, ReformerForMaskedLM, ReformerModelWithLMHead


def reformer(*layers: str, **fields: Any) -> ReformerConfig:
    plain = {
        "vocab_size": 37,
        "hidden_size": 20,
        "num_attention_heads": 3,
        "attention_head_size": 5,
        "feed_forward_size": 24,
        "axial_pos_shape": [3, 4],
        "axial_pos_embds_dim": [6, 14],
        "max_position_embeddings": 96,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 4,
        "hash_seed": 3,
        "is_decoder": True,
        "hidden_dropout_prob": 0.0,
        "local_attention_probs_dropout_prob": 0.0,
        "eos_token_id": None,
    }
    return ReformerConfig(**{**plain, "attn_layers": list(layers), **fields})


# With a state qkv's hashed layers meet every key, and that library's the chunks of a sorting without what comes after:
# neither is what a whole text gives. With several rounds and a causal mask that library's weights of a position that
# sees itself alone are rounded to half a per cent.
CASES = (
    Case("reformer", ReformerModelWithLMHead, reformer("local", "lsh"), (12, 12), 8, trains=True, cached=False),
    Case(
        "reformer-learned-factored",
        ReformerModelWithLMHead,
        reformer(
            "lsh", "local", "lsh", axial_pos_embds=False, num_buckets=[2, 4], lsh_num_chunks_before=2, hidden_act="gelu"
        ),
        (12, 12),
        20,
        trains=True,
        cached=False,
    ),
    Case(
        "reformer-local",
        ReformerModelWithLMHead,
        reformer("local", "local", axial_pos_embds=False, local_num_chunks_before=2, num_buckets=None, hash_seed=None),
        (12, 12),
        40,
        trains=True,
    ),
    Case(
        "reformer-masked",
        ReformerForMaskedLM,
        reformer("lsh", "lsh", is_decoder=False, num_hashes=3, lsh_num_chunks_after=1),
        (12, 12),
        0,
        trains=True,
    ),
)
