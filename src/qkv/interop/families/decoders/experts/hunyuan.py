"""Hunyuan with experts (Tencent 2025): the attention of the dense Hunyuan, experts in every layer and a shared one."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import language_model, of_decoder
from qkv.interop.families.decoders.norms import hunyuan
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

_KEYS = experts.ExpertKeys(
    {"num_experts": "num_experts", "top_k": "moe_topk", "hidden": "intermediate_size"},
    {"normalised": True, "num_shared": 1},
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Hunyuan with experts: the shared expert is as large as one of the others.

    Raises ``UserError`` if the number of experts, or of those chosen, is given per layer.
    """
    return _KEYS.spec(config, hunyuan.spec(config, head))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _KEYS.config(spec, hunyuan.config)


HUNYUAN_MOE = Family(
    name="Hunyuan with experts",
    model_types=("hunyuan_v1_moe",),
    architectures={
        "HunYuanMoEV1ForCausalLM": language_model(tied=False),
        **of_decoder("HunYuanMoEV1", tags=None, question_answering=False),
    },
    spec=spec,
    config=config,
    names=(*experts.names(experts.MLP, router="gate.wg", shared="shared_mlp"), *hunyuan.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**hunyuan.IGNORED_CONFIG, **experts.IGNORED_CONFIG},
    synonyms={"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"},
    defaults={**hunyuan.SIZES, "num_experts": 1, "moe_topk": 1},
)

register(HUNYUAN_MOE)
