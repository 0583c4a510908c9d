"""EXAONE 4.0 (LG AI Research 2025): Llama's blocks with norms of queries and keys, and of the branches' outputs.

If some layers have a sliding window, the layers with full attention have no positions.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative
from qkv.system.errors import UserError


def attentions_of(config: Config, step: int | None = None) -> list[Attention]:
    """Build the attention of each layer.

    Unless ``layer_types`` is set, layer i has full attention if i + 1 is a multiple of ``step``, by default that of
    ``sliding_window_pattern``. Without ``sliding_window``, all layers have full attention and RoPE.
    """
    slides, named = config.has("sliding_window"), config.items("layer_types")
    if step is None:
        config.has("sliding_window_pattern")
    pattern = step or (4 if named else config.integer("sliding_window_pattern", 4))
    if slides and pattern < 1:
        raise UserError(f"{config.source}: sliding_window_pattern is {pattern}, but it should be at least 1")
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if slides and (i + 1) % pattern else gated.FULL)
    attention = gated.attention_of(config, qk_norm=gated.norm_of(config))
    full = attention.changed(relative=NoRelative()) if slides else attention
    return [attention.changed(mask=gated.mask_of(config, kind)) if kind == gated.SLIDING else full for kind in kinds]


def spec(config: Config, head: Head) -> Model:
    """Build the spec of EXAONE 4: norms are applied to the outputs of the branches."""
    return gated.with_blocks(gated.model_of(config, head, attentions_of(config)), order="res_post")


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike, turned = gated.with_rope(spec)
    keys, masks = gated.config_of(alike), gated.masks_config(spec)
    if keys is None:
        return None
    window = masks["sliding_window"] if all(turned) else masks["sliding_window"] or spec.context_length
    return {**keys, "sliding_window": window, "layer_types": masks["layer_types"], "pad_token_id": None}


EXAONE4 = Family(
    name="EXAONE 4",
    model_types=("exaone4",),
    architectures={"Exaone4ForCausalLM": language_model(tied=False), **of_decoder("Exaone4")},
    spec=spec,
    config=config,
    names=(*gated.OUTPUT_NORMS, *gated.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    base="Llama",
)

register(EXAONE4)
