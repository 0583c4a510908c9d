"""Configs as the makers of BLOOM, MPT, GPT-NeoX, Falcon and Gemma wrote them, what is refused, Gemma in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.interop.cases import gemma as gemma_cases
from tests.interop.cases import neox as neox_cases
from transformers import Gemma2ForCausalLM, GPTNeoXForCausalLM

from qkv.interop.load import load_published
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import read_spec
from qkv.interop.registry import choose
from qkv.layers.signal import Signal
from qkv.spec.branches import Attention, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Model
from qkv.spec.parts import LinearScaling, Rope
from qkv.system.errors import UserError


def read(values: dict[str, Any]) -> Model:
    config = Config(values)
    return read_spec(*choose(config), config)


def first_attention(spec: Model) -> Attention:
    attention = spec.layers[0].branches[0]
    assert isinstance(attention, Attention)
    return attention


BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "apply_residual_connection_post_layernorm": False,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "masked_softmax_fusion": True,
    "n_embed": 1024,
    "n_inner": None,
    "n_layer": 24,
    "num_attention_heads": 16,
    "offset_alibi": 100,
    "pretraining_tp": 1,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "slow_but_exact": False,
    "vocab_size": 250880,
}
MPT = {
    "model_type": "mpt",
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True,
        "alibi_bias_max": 8,
        "attn_impl": "torch",
        "attn_pdrop": 0,
        "clip_qkv": None,
        "qk_ln": False,
    },
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "expansion_ratio": 4,
    "init_device": "cpu",
    "learned_pos_emb": True,
    "logit_scale": None,
    "max_seq_len": 2048,
    "no_bias": True,
    "tokenizer_name": "EleutherAI/gpt-neox-20b",
    "verbose": 0,
    "vocab_size": 50432,
}
PYTHIA = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 20000,
    "rotary_pct": 0.5,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
FALCON = {
    "model_type": "falcon",
    "architectures": ["FalconForCausalLM"],
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}
GEMMA = {
    "model_type": "gemma",
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}
GEMMA2 = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "cache_implementation": "hybrid",
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 144,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


def test_blooms_older_names() -> None:
    spec = read(BLOOM)
    assert (spec.width, len(spec.layers), first_attention(spec).num_heads, spec.context_length) == (1024, 24, 16, 2048)


def test_mpt_under_its_makers_name() -> None:
    spec = read(MPT)
    assert (spec.width, spec.context_length, first_attention(spec).temperature) == (4096, 2048, 1.0)


def test_pythias_share_and_base_of_the_rotation() -> None:
    assert first_attention(read(PYTHIA)).relative == Rope(base=20000.0, fraction=0.5)
    without = {key: value for key, value in PYTHIA.items() if not key.startswith("rotary")}
    assert first_attention(read(without)).relative == Rope(fraction=0.25)


def test_falcon_7b_has_one_norm_and_one_head_of_keys() -> None:
    spec = read(FALCON)
    assert (spec.layers[0].order, spec.layers[0].norms, first_attention(spec).kv_heads) == ("parallel", (), 1)
    spec = read(
        {**FALCON, "new_decoder_architecture": True, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8}
    )
    assert (len(spec.layers[0].norms), first_attention(spec).kv_heads) == (2, 8)


def test_gemmas_gelu_is_its_tanh_form() -> None:
    feed_forward = read(GEMMA).layers[0].branches[1]
    assert isinstance(feed_forward, GatedFeedForward)
    assert feed_forward.activation == "gelu_tanh"


def test_a_cap_that_is_null_is_none_and_one_that_is_missing_is_gemma_2s() -> None:
    spec = read(GEMMA2)
    assert (first_attention(spec).softcap, spec.head) == (50.0, LanguageModelHead(softcap=30.0))
    assert first_attention(spec).temperature == 0.75
    spec = read({**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (first_attention(spec).softcap, spec.head) == (None, LanguageModelHead())


def test_gemma_3s_layers_repeat_a_pattern_of_six() -> None:
    spec = read(GEMMA3)
    shown = [str(block.branches[0].mask) for block in spec.layers if isinstance(block.branches[0], Attention)]
    assert len(spec.blocks) == 6
    assert shown == [("causal" if i % 6 == 5 else "causal & window(512)") for i in range(26)]
    last = spec.blocks[-1].branches[0]
    assert isinstance(last, Attention)
    assert (last.relative, first_attention(spec).relative) == (
        Rope(base=1e6, scaling=LinearScaling(factor=8.0)),
        Rope(),
    )


REFUSED = {
    "bloom-post-norm-residual": (
        BLOOM,
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm",
    ),
    "bloom-two-widths": (BLOOM, {"hidden_size": 512}, "n_embed is 1024, but qkv supports only 512"),
    "mpt-slopes": (MPT, {"attn_config": {"alibi_bias_max": 16}}, "attn_config: alibi_bias_max is 16"),
    "mpt-without-alibi": (MPT, {"attn_config": {"alibi": False}}, "attn_config: alibi is False"),
    "mpt-scale": (MPT, {"attn_config": {"softmax_scale": 0.0}}, "softmax_scale is 0, but it should be above 0"),
    "mpt-logits": (MPT, {"logit_scale": 0.5}, "logit_scale is 0.5"),
    "mpt-biases": (MPT, {"no_bias": False}, "no_bias is False"),
    "falcon-residual": (
        FALCON,
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm is True",
    ),
    "falcon-two-norms": (FALCON, {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2"),
    "falcon-in-turn": (FALCON, {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn False"),
    "gemma-sees-all": (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    "gemma2-scalar": (GEMMA2, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0, but it should be above 0"),
    "gemma2-no-window": (GEMMA2, {"sliding_window": None}, "the key 'sliding_window' is missing"),
    "gemma3-layers": (
        GEMMA3,
        {"layer_types": ["full_attention"]},
        "layer_types names 1 layers, but num_hidden_layers is 26",
    ),
    "gemma3-kinds": (GEMMA3, {"layer_types": ["full_atention"] * 26}, "did you mean 'full_attention'?"),
    "gemma3-pattern": (
        GEMMA3,
        {"sliding_window_pattern": 0},
        "sliding_window_pattern is 0, but it should be at least 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_the_computation_is_refused(name: str) -> None:
    base, changed, sentence = REFUSED[name]
    with pytest.raises(UserError) as caught:
        read({**base, **changed})
    assert sentence in str(caught.value)


def test_neox_reads_both_names_of_its_head(tmp_path: Path) -> None:
    GPTNeoXForCausalLM(neox_cases.config()).save_pretrained(tmp_path)
    before = load_published(tmp_path).model.state_dict()
    stored = load_file(tmp_path / "model.safetensors")
    stored["lm_head.weight"] = stored.pop("embed_out.weight")
    save_file(stored, tmp_path / "model.safetensors")
    assert all(
        torch.equal(before[name], tensor) for name, tensor in load_published(tmp_path).model.state_dict().items()
    )


def test_gemma_in_bf16_scales_by_the_rounded_root(tmp_path: Path) -> None:
    """√48 = 6.9282 is 6.9375 in bf16; vectors times the unrounded root would differ in many of their last bits."""
    theirs = Gemma2ForCausalLM(gemma_cases.gemma2(hidden_size=48)).bfloat16().eval()
    theirs.save_pretrained(tmp_path)
    ours = load_published(tmp_path).model
    ids = torch.arange(4, 61)[None]
    with torch.no_grad():
        assert torch.equal(ours.embed(Signal(ids))[0], theirs.model.embed_tokens(ids))
        unrounded = (theirs.model.embed_tokens.weight[ids] * 48**0.5) == theirs.model.embed_tokens(ids)
        assert unrounded.float().mean() < 0.9


def test_kimi_is_deepseek_under_another_name() -> None:
    """As its config is published: "auto_map" names the code in the folder, which is DeepSeek-V3's."""
    keys = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "num_hidden_layers": 3,
        "scoring_func": "sigmoid",
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "vocab_size": 163840,
    }
    assert read({"model_type": "kimi_k2", **keys}) == read({"model_type": "deepseek_v3", **keys})


def test_long_texts_of_published_longrope_are_decoded_as_by_its_code() -> None:
    """A recipe accepts the model, although keys of shorter rows keep their rotation."""
    table = {"type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0]}
    keys = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 20}
    spec = read(
        {
            "model_type": "phi3",
            **keys,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 8,
            "rope_scaling": table,
        }
    )
    assert spec.first_inexact(spec.context_length) == ((), None)
    assert first_attention(spec).exactness.length == 8
