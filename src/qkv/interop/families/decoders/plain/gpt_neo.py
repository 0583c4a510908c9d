"""GPT-Neo (Black et al. 2021) and GPT-BigCode (StarCoder, Li et al. 2023): decoders with GPT-2's names.

GPT-Neo does not scale its scores and has a window in some layers; GPT-BigCode has one key/value head.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.plain import GPT2_KEYS, PlainKeys
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED, PLAIN, QKV, Way
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model
from qkv.spec.parts import Learned
from qkv.system.errors import UserError

_NEO = PlainKeys(
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "activation_function",
    "max_position_embeddings",
    "resid_dropout",
    "attention_dropout",
    eps="layer_norm_epsilon",
)
_BLOCK, _THEIRS = "blocks.{layer}.branches.", "transformer.h.{layer}."
_SHARED = (
    NameRule("frontend.table", "transformer.wte.weight"),
    NameRule("frontend.positions.table", "transformer.wpe.weight"),
    NameRule(f"{_BLOCK}0.norm.*", f"{_THEIRS}ln_1.*"),
    NameRule(f"{_BLOCK}1.norm.*", f"{_THEIRS}ln_2.*"),
    NameRule(f"{_BLOCK}1.body.up.*", f"{_THEIRS}mlp.c_fc.*"),
    NameRule(f"{_BLOCK}1.body.down.*", f"{_THEIRS}mlp.c_proj.*"),
    NameRule("norm.*", "transformer.ln_f.*"),
)
_ATTENTION = f"{_THEIRS}attn.attention."


def _fused(spec: Model) -> Way:
    """Return the conversion of queries, keys and values.

    They alternate by head, or follow one another if all queries share one key/value head.
    """
    attention = spec.layers[0].branches[0]
    shared = isinstance(attention, Attention) and attention.kv_heads == 1
    return PLAIN if shared else INTERLEAVED


def spec_of_neo(config: Config, head: Head) -> Model:
    """Build the spec of GPT-Neo.

    ``attention_types`` lists pairs of kinds, "global" or "local", and repetitions; by default, the two kinds alternate,
    global first.
    """
    width, heads, layers = config.size("hidden_size"), config.size("num_heads"), config.layers("num_layers")
    types = config.items("attention_types")
    kinds = [kind for names, count in types for _ in range(count) for kind in names]
    kinds = kinds or [("global", "local")[i % 2] for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise UserError(
            f"{config.source}: attention_types is {types}, but it should name global or local for {layers} layers"
        )
    config.has("attention_layers")
    attention = _NEO.attention(
        config, bias=False, output_bias=True, temperature=(width // heads) ** -0.5, head_dim=width // heads
    )
    window = gated.windowed(config.integer("window_size", 256))
    masks = [window if kind == "local" else Causal() for kind in kinds]
    return _NEO.model(config, head, [attention.changed(mask=mask) for mask in masks], Learned())


def config_of_neo(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys, sizes = _NEO.config(spec), [gated.window_of(block.branches[0]) for block in spec.layers]
    if keys is None:
        return None
    types = [[["local" if size else "global"], 1] for size in sizes]
    return {**keys, "attention_types": types, "window_size": next((size for size in sizes if size), 256)}


def spec_of_bigcode(config: Config, head: Head) -> Model:
    """Build the spec of GPT-BigCode: with ``multi_query``, all queries share one key/value head."""
    config.fixed("scale_attn_weights", True, "the scale of attention")
    config.fixed("add_cross_attention", False, "the branches of a block")
    shared = config.flag("multi_query", True)
    attention = GPT2_KEYS.attention(config, num_kv_heads=1 if shared else None)
    return GPT2_KEYS.model(config, head, [attention] * config.layers("n_layer"), Learned())


def config_of_bigcode(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = GPT2_KEYS.config(spec)
    attention = spec.layers[0].branches[0] if spec.layers else None
    if keys is None or not isinstance(attention, Attention):
        return None
    return {**keys, "multi_query": attention.kv_heads == 1}


_IGNORED = {
    "transformer.h.{layer}.attn.attention.bias": "a constant mask table",
    "transformer.h.{layer}.attn.attention.masked_bias": "a constant of older versions",
    "transformer.h.{layer}.attn.bias": "a constant mask table",
    "transformer.h.{layer}.attn.masked_bias": "a constant of older versions",
}
_IGNORED_CONFIG = {
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
    **dict.fromkeys(("embd_pdrop", "embed_dropout"), "dropout in training, which a recipe sets"),
    **dict.fromkeys(
        ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input"),
        "execution setting",
    ),
    **dict.fromkeys(("pre_allocate_kv_cache", "max_sequence_length", "max_batch_size"), "execution setting"),
}

GPT_NEO = Family(
    name="GPT-Neo",
    base="GPT-2",
    model_types=("gpt_neo",),
    architectures={
        "GPTNeoForCausalLM": language_model(tied=True),
        **of_decoder("GPTNeo", tags="classifier"),
    },
    spec=spec_of_neo,
    config=config_of_neo,
    names=(
        NameRule(
            f"{_BLOCK}0.body.qkv.*", (f"{_ATTENTION}q_proj.*", f"{_ATTENTION}k_proj.*", f"{_ATTENTION}v_proj.*"), QKV
        ),
        NameRule(f"{_BLOCK}0.body.output.*", f"{_ATTENTION}out_proj.*"),
        *_SHARED,
    ),
    prefix="transformer.",
    ignored=_IGNORED,
    ignored_config=_IGNORED_CONFIG,
    synonyms={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    defaults={
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "activation_function": "gelu_new",
        "classifier_dropout": 0.1,
    },
)
BIGCODE = Family(
    name="GPT-BigCode",
    base="GPT-2",
    model_types=("gpt_bigcode",),
    architectures={
        "GPTBigCodeForCausalLM": language_model(tied=True),
        **of_decoder("GPTBigCode", tags="classifier", question_answering=False),
    },
    spec=spec_of_bigcode,
    config=config_of_bigcode,
    names=(
        NameRule(f"{_BLOCK}0.body.qkv.*", f"{_THEIRS}attn.c_attn.*", _fused),
        NameRule(f"{_BLOCK}0.body.output.*", f"{_THEIRS}attn.c_proj.*"),
        *_SHARED,
    ),
    prefix="transformer.",
    ignored=_IGNORED,
    ignored_config=_IGNORED_CONFIG,
    synonyms={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_pytorch_tanh",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
)

register(GPT_NEO, BIGCODE)
