"""BigBird (Zaheer et al. 2020) with full attention, which it uses for short rows: BERT's structure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import masked, masked_or_causal, tagging, written_back
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.system.errors import UserError


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BigBird: like BERT.

    ``use_bias`` false: queries, keys and values have no biases. ``rescale_embeddings``: embeddings are multiplied by
    √D.
    """
    check_full(config)
    model, biased = bert.spec(config, head), config.flag("use_bias", True)
    (block,) = model.blocks
    attention, second = block.branches
    changed_attention = attention.changed(bias=biased, output_bias=True)
    words = model.frontend.changed(scale=config.flag("rescale_embeddings", False))
    return model.changed(blocks=(block.changed(branches=(changed_attention, second)),), frontend=words)


def check_full(config: Config) -> None:
    """Raise ``UserError`` if the published code would apply sparse attention to long rows."""
    longest = (5 + 2 * config.integer("num_random_blocks", 3)) * config.integer("block_size", 64)
    kind = config.word("attention_type", "block_sparse", {"block_sparse": True, "original_full": False})
    if kind and config.size("max_position_embeddings", 4096) > longest:
        raise UserError(
            f"{config.source}: attention_type is 'block_sparse', which for rows of more than {longest} positions needs "
            "attention to random blocks, which qkv does not have; set 'original_full', which is equal for shorter "
            "rows"
        )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, Attention) or not isinstance(spec.frontend, Text):
        return None
    keys = bert.config(spec)
    fields = {"use_bias": first.bias, "rescale_embeddings": spec.frontend.scale, "attention_type": "original_full"}
    return keys and {**keys, **fields}


_POOLER = {"bert.pooler.*": "part of the pooler, which this architecture does not use"}
_WORDS = replace(
    masked(bert.MASKED_NAMES),
    kept=written_back(_POOLER),
)
BIG_BIRD = Family(
    name="BigBird",
    base="BERT",
    model_types=("big_bird",),
    architectures={
        **masked_or_causal("BigBirdForMaskedLM", "BigBirdForCausalLM", _WORDS),
        "BigBirdModel": heads.body("bert.embeddings.word_embeddings.weight", kept=_POOLER),
        "BigBirdForTokenClassification": replace(tagging("classifier"), kept=written_back(_POOLER)),
    },
    spec=spec,
    config=config,
    names=bert.names("bert."),
    prefix="bert.",
    typical={"attention_type": "original_full"},
    defaults={"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096},
    ignored=bert.IGNORED,
    ignored_config={
        **bert.IGNORED_CONFIG,
        **dict.fromkeys(("block_size", "num_random_blocks"), "read only by attention to blocks"),
    },
)

register(BIG_BIRD)
