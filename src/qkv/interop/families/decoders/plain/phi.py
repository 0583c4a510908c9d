"""Decoders with parallel attention and feed-forward on one norm, RoPE on a part of each head, and a head with bias.

Phi-1 and Phi-2 (Gunasekar et al. 2023), GPT-J (Wang & Komatsuzaki 2021) and CodeGen (Nijkamp et al. 2022). RoPE pairs
are adjacent in the files of GPT-J and CodeGen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.heads import HEAD_KEYS, of_decoder
from qkv.interop.families.common.plain import GPT2_KEYS, PlainKeys
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Shards, Way, interleaved_rope
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model
from qkv.spec.parts import NoPositions, Rope
from qkv.system.errors import UserError

_PHI = PlainKeys(
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "resid_pdrop",
    "attention_dropout",
    eps="layer_norm_eps",
)


def _biased(config: Config) -> Head:
    """Build the language model head logits = x W^T + b."""
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", False), bias=True)


def _biased_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or not head.bias:
        return None
    return {"tie_word_embeddings": head.tied}


_WORDS = Architecture(_biased, _biased_keys, (NameRule("head.*", "lm_head.*"),))


def spec_of_phi(config: Config, head: Head) -> Model:
    """Build the spec of Phi: biases in all linear layers; by default RoPE rotates half of each head."""
    config.fixed("qk_layernorm", False, "norms of queries and keys")
    heads = config.size("num_attention_heads")
    attention = _PHI.attention(
        config, num_kv_heads=config.size("num_key_value_heads", heads), relative=rope_of(config, 0.5)
    )
    layers = config.layers("num_hidden_layers")
    return _PHI.model(config, head, [attention] * layers, NoPositions(), "parallel")


def spec_of_gptj(config: Config, head: Head) -> Model:
    """Build the spec of GPT-J: no biases in attention.

    RoPE rotates the first ``rotary_dim`` features of a head, or all if it is null.
    """
    head_dim = config.size("n_embd") // config.size("n_head")
    rope = Rope(fraction=config.integer("rotary_dim", head_dim) / head_dim)
    attention = GPT2_KEYS.attention(config, bias=False, relative=rope)
    return GPT2_KEYS.model(config, head, [attention] * config.layers("n_layer"), NoPositions(), "parallel")


def _first(spec: Model) -> tuple[Attention, Rope] | None:
    """Return (attention, RoPE) of the first block; None if it has another structure."""
    match spec.layers[:1]:
        case (block,):
            attention = block.branches[0]
        case _:
            return None
    if not isinstance(attention, Attention) or not isinstance(attention.relative, Rope):
        return None
    return attention, attention.relative


def config_of_phi(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Phi's. Callers read them back to verify."""
    keys, first = _PHI.config(spec), _first(spec)
    turned = rope_config(first[1], partial=True) if first else None
    if keys is None or first is None or turned is None:
        return None
    return {**keys, **turned, FRACTION: first[1].fraction, "num_key_value_heads": first[0].kv_heads}


def config_of_gptj(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not GPT-J's. Callers read them back to verify."""
    keys, first = GPT2_KEYS.config(spec), _first(spec)
    if keys is None or first is None:
        return None
    return {**keys, "rotary_dim": first[1].rotated(first[0].dims(spec.width)[0])}


def _pairs(spec: Model) -> Way:
    first = _first(spec)
    return interleaved_rope(first[1].rotated(first[0].dims(spec.width)[0]) if first else None)


def _shards(spec: Model) -> Way:
    first = _first(spec)
    return Shards(4, first[1].rotated(first[0].dims(spec.width)[0]) if first else None)


def spec_of_codegen(config: Config, head: Head) -> Model:
    """Build the spec of CodeGen: like GPT-J. Raises ``UserError`` if the number of heads is not a multiple of four."""
    heads = config.size("n_head")
    if heads % 4 or not config.has("rotary_dim"):
        raise UserError(
            f"{config.source}: n_head is {heads} and rotary_dim {config.values.get('rotary_dim')}, but CodeGen has a "
            "number of heads that 4 divides, and a rotary_dim"
        )
    return spec_of_gptj(config, head)


_BLOCK, _LAYER, _HEAD = "blocks.{layer}.branches.", "model.layers.{layer}.", "transformer.h.{layer}."
_PHI_ATTENTION, _J_ATTENTION = f"{_LAYER}self_attn.", f"{_HEAD}attn."

PHI = Family(
    name="Phi",
    model_types=("phi",),
    architectures={"PhiForCausalLM": _WORDS, **of_decoder("Phi", question_answering=False)},
    spec=spec_of_phi,
    config=config_of_phi,
    names=(
        NameRule("frontend.table", "model.embed_tokens.weight"),
        NameRule("blocks.{layer}.norm.*", f"{_LAYER}input_layernorm.*"),
        NameRule(
            f"{_BLOCK}0.body.qkv.*",
            (f"{_PHI_ATTENTION}q_proj.*", f"{_PHI_ATTENTION}k_proj.*", f"{_PHI_ATTENTION}v_proj.*"),
            QKV,
        ),
        NameRule(f"{_BLOCK}0.body.output.*", f"{_PHI_ATTENTION}dense.*"),
        NameRule(f"{_BLOCK}1.body.up.*", f"{_LAYER}mlp.fc1.*"),
        NameRule(f"{_BLOCK}1.body.down.*", f"{_LAYER}mlp.fc2.*"),
        NameRule("norm.*", "model.final_layernorm.*"),
    ),
    prefix="model.",
    ignored={f"{_LAYER}self_attn.rotary_emb.inv_freq": "computed from the config"},
    ignored_config={**HEAD_KEYS, "embd_pdrop": "dropout in training, which a recipe sets"},
    defaults={
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 2048,
    },
)
GPTJ = Family(
    name="GPT-J",
    model_types=("gptj",),
    architectures={"GPTJForCausalLM": _WORDS, **of_decoder("GPTJ", tags=None)},
    spec=spec_of_gptj,
    config=config_of_gptj,
    names=(
        NameRule("frontend.table", "transformer.wte.weight"),
        NameRule("blocks.{layer}.norm.*", f"{_HEAD}ln_1.*"),
        NameRule(
            f"{_BLOCK}0.body.qkv.*",
            (f"{_J_ATTENTION}q_proj.*", f"{_J_ATTENTION}k_proj.*", f"{_J_ATTENTION}v_proj.*"),
            _pairs,
        ),
        NameRule(f"{_BLOCK}0.body.output.*", f"{_J_ATTENTION}out_proj.*"),
        NameRule(f"{_BLOCK}1.body.up.*", f"{_HEAD}mlp.fc_in.*"),
        NameRule(f"{_BLOCK}1.body.down.*", f"{_HEAD}mlp.fc_out.*"),
        NameRule("norm.*", "transformer.ln_f.*"),
    ),
    prefix="transformer.",
    ignored={
        f"{_HEAD}attn.bias": "a constant mask table",
        f"{_HEAD}attn.masked_bias": "a constant of older versions",
        f"{_HEAD}attn.embed_positions": "computed from the config",
    },
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(
            (
                "summary_type",
                "summary_use_proj",
                "summary_activation",
                "summary_proj_to_labels",
                "summary_first_dropout",
            ),
            "part of a head that this architecture lacks",
        ),
        **dict.fromkeys(("rotary", "scale_attn_weights", "gradient_checkpointing"), "fixed by the family"),
        "embd_pdrop": "dropout in training, which a recipe sets",
    },
    synonyms={
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    defaults={
        "vocab_size": 50400,
        "n_positions": 2048,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
    },
)

CODEGEN = replace(
    GPTJ,
    name="CodeGen",
    model_types=("codegen",),
    architectures={"CodeGenForCausalLM": _WORDS},
    spec=spec_of_codegen,
    typical={"n_head": 16},
    names=(NameRule(f"{_BLOCK}0.body.qkv.*", f"{_J_ATTENTION}qkv_proj.*", _shards), *GPTJ.names),
    ignored={**GPTJ.ignored, f"{_HEAD}attn.causal_mask": "a constant mask table"},
    ignored_config={**GPTJ.ignored_config, "n_ctx": "not read by the published code"},
    base="GPT-J",
)

register(PHI, GPTJ, CODEGEN)
