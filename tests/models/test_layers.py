"""Whole blocks against published models' layers: four norms and soft caps, parallel branches with their own norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import Causal, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoPositions, RMSNorm, Rope

VOCABULARY, WIDTH, LENGTH = 19, 24, 14
TEXT = Text(vocab_size=VOCABULARY, positions=NoPositions())


def scrambled(theirs: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    for parameter in theirs.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return theirs.eval()


def fill(ours: Any, weights: dict[str, Tensor]) -> Transformer:
    missing, unexpected = ours.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["head.weight"] if "head.weight" in missing else [], [])
    return ours.eval()  # type: ignore[no-any-return]


def assert_same(ours: Transformer, theirs: Any) -> None:
    ids = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits
    assert expected.std() > 0.1
    seen = ours(ids)[0]
    assert (seen - expected).abs().max() < 1e-4 * expected.abs().max()
    state, outs = ours.init_state(2), []
    for piece in ids.split([9, 1, 4], 1):
        y, state = ours(piece, state)
        outs.append(y)
    assert (torch.cat(outs, 1) - expected).abs().max() < 1e-4 * expected.abs().max()


def gemma_2_weights(theirs: Any) -> dict[str, Tensor]:
    """Gemma 2's weights under the names of ours."""
    weights = {"frontend.table": theirs.model.embed_tokens.weight, "norm.weight": theirs.model.norm.weight}
    for i, layer in enumerate(theirs.model.layers):
        mix, feed, attends = f"blocks.{i}.branches.0", f"blocks.{i}.branches.1", layer.self_attn
        weights |= {
            f"{mix}.norm.weight": layer.input_layernorm.weight,
            f"{mix}.norm_after.weight": layer.post_attention_layernorm.weight,
            f"{feed}.norm.weight": layer.pre_feedforward_layernorm.weight,
            f"{feed}.norm_after.weight": layer.post_feedforward_layernorm.weight,
            f"{mix}.body.qkv.weight": torch.cat([attends.q_proj.weight, attends.k_proj.weight, attends.v_proj.weight]),
            f"{mix}.body.output.weight": attends.o_proj.weight,
            f"{feed}.body.gate_up.weight": torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]),
            f"{feed}.body.down.weight": layer.mlp.down_proj.weight,
        }
    return weights


@torch.no_grad()
def test_sandwiches_with_zero_centred_norms_and_soft_caps_are_gemma_2() -> None:
    """A window in every other layer, scores and logits capped where the cap bites, a scale of scores of its own."""
    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=5,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0,
        rms_norm_eps=1e-3,
        attn_implementation="eager",
    )
    theirs = scrambled(Gemma2ForCausalLM(config))
    attention = Attention(
        num_heads=4, num_kv_heads=2, head_dim=10, temperature=(7 / 10) ** 0.5, bias=False, relative=Rope(), softcap=1.5
    )
    norm, forward = RMSNorm(eps=1e-3, zero_centred=True), GatedFeedForward(hidden=20, activation="gelu_tanh")
    local = attention.changed(mask=Causal() & Window(size=5))
    blocks = tuple(Block(branches=(mix, forward), norm=norm, order="sandwich") for mix in (local, attention))
    text = TEXT.changed(scale=True)
    ours = build(
        Model(
            width=WIDTH, context_length=32, frontend=text, blocks=blocks, norm=norm, head=LanguageModelHead(softcap=3.0)
        )
    )
    assert_same(fill(ours, gemma_2_weights(theirs)), theirs)


def gpt_neox_weights(theirs: Any) -> dict[str, Tensor]:
    """GPT-NeoX's weights under the names of ours."""
    model = theirs.gpt_neox
    weights = {"frontend.table": model.embed_in.weight, "head.weight": theirs.get_output_embeddings().weight}
    weights |= {f"norm.{name}": value for name, value in model.final_layer_norm.named_parameters()}
    for i, layer in enumerate(model.layers):
        mix, feed = f"blocks.{i}.branches.0", f"blocks.{i}.branches.1"
        places = {
            f"{mix}.norm": layer.input_layernorm,
            f"{feed}.norm": layer.post_attention_layernorm,
            f"{mix}.body.output": layer.attention.dense,
            f"{feed}.body.up": layer.mlp.dense_h_to_4h,
            f"{feed}.body.down": layer.mlp.dense_4h_to_h,
        }
        weights |= {
            f"{place}.{name}": value for place, module in places.items() for name, value in module.named_parameters()
        }
        # There q, k and v of a head stand together.
        for name, value in layer.attention.query_key_value.named_parameters():
            weights[f"{mix}.body.qkv.{name}"] = value.unflatten(0, (3, 3, 8)).transpose(0, 1).flatten(0, 2)
    return weights


@torch.no_grad()
def test_parallel_branches_with_norms_of_their_own_are_gpt_neox() -> None:
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=3,
        rotary_pct=0.25,
        max_position_embeddings=32,
        layer_norm_eps=1e-3,
        use_parallel_residual=True,
    )
    theirs = scrambled(GPTNeoXForCausalLM(config))
    norm = LayerNorm(eps=1e-3)
    branches = (Attention(num_heads=3, relative=Rope(fraction=0.25)), FeedForward(hidden=20))
    block = Block(branches=branches, order="parallel", norms=(norm, norm))
    ours = build(
        Model(
            width=WIDTH,
            num_layers=2,
            context_length=32,
            frontend=TEXT,
            blocks=(block,),
            norm=norm,
            head=LanguageModelHead(tied=False),
        )
    )
    assert_same(fill(ours, gpt_neox_weights(theirs)), theirs)
