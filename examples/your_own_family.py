"""A family of published models defined outside the package: configs and tensor names in both directions.

The family, "House MoE", is one that nobody else has: Llama's attention, and a mixture of experts whose weights are
stored for all experts in one tensor.

    python examples/your_own_family.py
    qkv load FOLDER --import examples/your_own_family.py        open a checkpoint of this family
"""

import tempfile
from typing import Any

import torch

import qkv
from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import language_model
from qkv.interop.load import load_published
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.interop.save import save_published
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.spec.position_wise.experts import MixtureOfExperts

# 1. Tensor names, in both directions. {layer} and {expert} are indices, * is weight or bias, and [{expert}] is a slice
#    of a tensor that holds all experts. The first row that applies is taken, so Llama's rows follow.
EXPERT, STORED = "blocks.{layer}.branches.1.body.experts.{expert}", "model.layers.{layer}.block_sparse_moe"
NAMES = (
    NameRule(f"{EXPERT}.gate_up.weight", f"{STORED}.input_linear.weight[{{expert}}]"),
    NameRule(f"{EXPERT}.down.weight", f"{STORED}.output_linear.weight[{{expert}}]"),
    NameRule("blocks.{layer}.branches.1.body.router.weight", f"{STORED}.router.layer.weight"),
    *gated.NAMES,
)


# 2. From a config to a spec. A key that changes what a model computes is read, or refused if it has another value.
def spec(config: Config, head: Head) -> Model:
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        config.fixed(key, 1.0, "the scale of activations")
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    scale = config.number("attention_multiplier", 1.0)  # in place of 1 / √Dk
    attention = attention.changed(temperature=1.0 / (scale * attention.dims(config.size("hidden_size"))[0] ** 0.5))
    experts = MixtureOfExperts(
        num_experts=config.size("num_local_experts"),
        top_k=config.integer("num_experts_per_tok"),
        hidden=config.size("intermediate_size"),
        activation=config.word("hidden_act", "silu", INWARD),
        normalised=True,
    )
    norm = gated.norm_of(config)
    return Model(
        width=config.size("hidden_size"),
        num_layers=config.layers("num_hidden_layers"),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=(Block(branches=(attention, experts), norm=norm),),
        norm=norm,
        head=head,
    )


# 3. From a spec to a config; None if the family has no such model. It is read back, so what it cannot say is noticed.
def config(spec: Model) -> dict[str, Any] | None:
    match spec.layers[0], spec.frontend:
        case Block(
            branches=(Attention(relative=Rope() as rope) as attention, MixtureOfExperts() as experts),
            norm=RMSNorm() as norm,
        ), Text() as frontend:
            head_dim = attention.dims(spec.width)[0]
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "attention_bias": attention.bias,
        "attention_multiplier": 1.0 / (attention.temperature * head_dim**0.5),
        "rope_theta": rope.base,
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.expert(spec.width).hidden_at(spec.width),
        "hidden_act": OUTWARD[experts.activation],
        "max_position_embeddings": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "rms_norm_eps": norm.eps,
    }


register(
    Family(
        name="House MoE",
        model_types=("house_moe",),
        architectures={"HouseMoeForCausalLM": language_model(tied=False)},
        spec=spec,
        config=config,
        names=NAMES,
        prefix="model.",
        ignored_config={"output_router_logits": "output format of a call", "router_aux_loss_coef": "training"},
    )
)


def main() -> None:
    """Write a random model as a checkpoint of the family, open it, and compare the logits."""
    values = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    values |= {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48, "vocab_size": 64}
    model = qkv.build(spec(Config(values), LanguageModelHead(tied=False)), seed=1).eval()
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        save_published(model, folder, family="House MoE")
        again = load_published(folder, copy=True)
        print(f"{again.family}: {sum(p.numel() for p in again.model.parameters()):,} parameters")
        print(f"largest difference of logits: {(model(ids)[0] - again.model(ids)[0]).abs().max():.1e}")


if __name__ == "__main__":
    main()
