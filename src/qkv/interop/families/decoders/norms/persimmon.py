"""Persimmon (Adept 2023): pre-norm blocks with biases, layer norms of queries and keys, RoPE on half of each head.

The feed-forward has squared ReLU and no gate. The rows of a head's query, key and value are adjacent in the files.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, NoNorm, Rope

_BODY, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
NAMES = (
    NameRule(f"{_BODY}0.body.qkv.*", f"{_LAYER}self_attn.query_key_value.*", INTERLEAVED),
    NameRule(f"{_BODY}0.body.output.*", f"{_LAYER}self_attn.dense.*"),
    NameRule(f"{_BODY}0.body.query_norm.*", f"{_LAYER}self_attn.q_layernorm.*"),
    NameRule(f"{_BODY}0.body.key_norm.*", f"{_LAYER}self_attn.k_layernorm.*"),
    NameRule(f"{_BODY}1.body.up.*", f"{_LAYER}mlp.dense_h_to_4h.*"),
    NameRule(f"{_BODY}1.body.down.*", f"{_LAYER}mlp.dense_4h_to_h.*"),
    NameRule("norm.*", "model.final_layernorm.*"),
    *gated.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Persimmon: ``qk_layernorm`` adds norms of queries and keys."""
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    attention = Attention(
        num_heads=config.size("num_attention_heads"),
        relative=rope_of(config, 0.5),
        qk_norm=norm if config.flag("qk_layernorm", True) else NoNorm(),
        dropout=config.number("attention_dropout", 0.0),
    )
    layers = [attention] * config.layers("num_hidden_layers")
    model = gated.model_of(config, head, layers, mlp_bias=True, norm=norm, part=FeedForward)
    return gated.with_blocks(model, dropout=config.number("hidden_dropout"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, _: {"qk_layernorm": attention.norms_heads}, rope=False)
    first = spec.layers[0].branches[0] if spec.layers else None
    match first:
        case Attention(relative=Rope() as rope) if keys is not None:
            turned = rope_config(rope, partial=True)
        case _:
            return None
    if turned is None or keys.pop("num_key_value_heads") != keys["num_attention_heads"]:
        return None
    if keys.pop("head_dim") * keys["num_attention_heads"] != spec.width:
        return None
    return {**keys, **turned, FRACTION: rope.fraction, "hidden_dropout": spec.layers[0].dropout}


PERSIMMON = Family(
    name="Persimmon",
    model_types=("persimmon",),
    architectures={
        "PersimmonForCausalLM": language_model(tied=False),
        **of_decoder("Persimmon", question_answering=False),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 262144,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "hidden_act": "relu2",
        "max_position_embeddings": 16384,
        "hidden_dropout": 0.0,
    },
)

register(PERSIMMON)
