"""OPT (Zhang et al. 2022), BioGPT (Luo et al. 2022) and XGLM (Lin et al. 2022): decoders with fairseq's names.

OPT and BioGPT have learned positions with offset 2, XGLM sinusoids with first position 2.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import HEAD_KEYS, body, language_model, of_decoder, tagging
from qkv.interop.families.common.plain import PlainKeys
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import Learned, Positions, Sinusoidal

_OPT = PlainKeys(
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "ffn_dim",
    "activation_function",
    "max_position_embeddings",
    "dropout",
    "attention_dropout",
    initial="init_std",
)
_BIOGPT = PlainKeys(
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)
_XGLM = PlainKeys(
    "d_model",
    "num_layers",
    "attention_heads",
    "ffn_dim",
    "activation_function",
    "max_position_embeddings",
    "dropout",
    "attention_dropout",
    initial="init_std",
)
_OFFSET = 2


def spec_of_opt(config: Config, head: Head) -> Model:
    """Build the spec of OPT: pre-norm blocks. The 350M model, which projects its embeddings, is refused."""
    width = config.size("hidden_size")
    config.fixed("word_embed_proj_dim", width, "the width of token vectors")
    config.fixed("do_layer_norm_before", True, "positions of the norms in a block")
    config.fixed("_remove_final_layer_norm", False, "the norm that ends the stack")
    config.fixed("layer_norm_elementwise_affine", True, "the weights of the norms")
    bias = config.flag("enable_bias", True)
    attention = _OPT.attention(config, bias=bias)
    layers = config.layers("num_hidden_layers")
    return _OPT.model(config, head, [attention] * layers, Learned(offset=_OFFSET), bias=bias)


def _scaled(keys: PlainKeys, positions: Positions) -> Any:
    def spec(config: Config, head: Head) -> Model:
        """Build the spec of BioGPT or XGLM: pre-norm blocks; by default embeddings are multiplied by √D."""
        attentions = [keys.attention(config)] * config.layers(keys.layers)
        config.fixed("activation_dropout", 0.0, "dropout within the feed-forward")
        config.fixed("add_cross_attention", False, "the branches of a block")
        return keys.model(config, head, attentions, positions, scale=config.flag("scale_embedding", True))

    return spec


def config_of_opt(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not OPT's. Callers read them back to verify."""
    keys = _OPT.config(spec)
    if keys is None:
        return None
    bias = getattr(spec.layers[0].branches[0], "bias", True)
    return {**keys, "word_embed_proj_dim": spec.width, "enable_bias": bias}


def _scaled_keys(keys: PlainKeys) -> Any:
    def config(spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
        values, text = keys.config(spec), spec.frontend
        return None if values is None or not isinstance(text, Text) else {**values, "scale_embedding": text.scale}

    return config


def _names(prefix: str, last: str = "layer_norm") -> tuple[NameRule, ...]:
    """Return the name table below ``prefix``; ``last``: name of the norm at the end of the stack."""
    return (
        NameRule("frontend.table", f"{prefix}.embed_tokens.weight"),
        NameRule("norm.*", f"{prefix}.{last}.*"),
        *bart_like.stack_names("", prefix, "1"),
    )


_IGNORED_CONFIG = {
    **HEAD_KEYS,
    "layerdrop": "layer dropout in training, which qkv does not use",
    "prefix": "settings of generation and of tasks",
    "decoder_start_token_id": "settings of generation and of tasks",
    "activation_dropout": "dropout in training, which a recipe sets",
    "is_decoder": "fixed by the family",
    "output_projection": "given by tie_word_embeddings",
}

OPT = Family(
    name="OPT",
    base="GPT-2",
    model_types=("opt",),
    architectures={
        "OPTForCausalLM": language_model(tied=True),
        "OPTModel": body("model.decoder.embed_tokens.weight"),
        **of_decoder("OPT", tags=None),
    },
    spec=spec_of_opt,
    config=config_of_opt,
    names=_names("model.decoder", "final_layer_norm"),
    prefix="model.",
    older={"decoder.version": "model.decoder.version"},
    ignored={"model.decoder.version": "version of the format"},
    ignored_config=_IGNORED_CONFIG,
    defaults={
        "vocab_size": 50272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "num_attention_heads": 12,
        "activation_function": "relu",
        "dropout": 0.1,
    },
)
BIOGPT = Family(
    name="BioGPT",
    base="GPT-2",
    model_types=("biogpt",),
    architectures={
        "BioGptForCausalLM": language_model(tied=True, theirs="output_projection.weight"),
        "BioGptForTokenClassification": tagging("classifier"),
    },
    spec=_scaled(_BIOGPT, Learned(offset=_OFFSET)),
    config=_scaled_keys(_BIOGPT),
    names=_names("biogpt"),
    prefix="biogpt.",
    ignored_config=_IGNORED_CONFIG | {"layer_norm_eps": "not read by the published code of this family"},
    defaults={
        "vocab_size": 42384,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 1024,
    },
)
XGLM = Family(
    name="XGLM",
    base="GPT-2",
    model_types=("xglm",),
    architectures={"XGLMForCausalLM": language_model(tied=True)},
    spec=_scaled(_XGLM, Sinusoidal(halves=True, closed=True, offset=_OFFSET)),
    config=_scaled_keys(_XGLM),
    names=_names("model"),
    prefix="model.",
    ignored={"model.embed_positions.weights": "computed from the config"},
    ignored_config=_IGNORED_CONFIG,
    synonyms={"num_attention_heads": "attention_heads", "hidden_size": "d_model", "num_hidden_layers": "num_layers"},
    defaults={
        "vocab_size": 256008,
        "max_position_embeddings": 2048,
        "d_model": 1024,
        "ffn_dim": 4096,
        "num_layers": 24,
        "attention_heads": 16,
        "activation_function": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
)

register(OPT, BIOGPT, XGLM)
