"""The whole stack against another library's: GPT-2 and Llama of random weights, same weights here, same logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Llama3Scaling, NoPositions, RMSNorm, Rope, RopeScaling

VOCABULARY, LENGTH = 101, 40
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def gpt2() -> tuple[Any, Transformer]:
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None
        )
    ).eval()
    norm = LayerNorm(eps=1e-5)
    block = Block(branches=(Attention(num_heads=4), FeedForward(activation="gelu_tanh")), norm=norm)
    ours = build(
        Model(
            width=48, num_layers=3, context_length=64, frontend=Text(vocab_size=VOCABULARY), blocks=(block,), norm=norm
        )
    ).eval()
    return theirs, ours


def llama(scaling: RopeScaling | None = None, tied: bool = False) -> tuple[Any, Transformer]:
    """Sizes that tell apart what could be confused.

    The head width is not width / heads, and there are three times as many heads as K/V heads.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        rms_norm_eps=1e-5,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": 5000.0, **(LLAMA3 if scaling else {"rope_type": "default"})},
        tie_word_embeddings=tied,
    )
    rope = Rope(base=5000.0, scaling=scaling)
    attention = Attention(num_heads=6, num_kv_heads=2, head_dim=10, relative=rope, bias=False)
    norm = RMSNorm(eps=1e-5)
    spec = Model(
        width=48,
        num_layers=2,
        context_length=128,
        frontend=Text(vocab_size=VOCABULARY, positions=NoPositions()),
        blocks=(Block(branches=(attention, GatedFeedForward(hidden=56)), norm=norm),),
        norm=norm,
        head=LanguageModelHead(tied=tied),
    )
    return LlamaForCausalLM(config).eval(), build(spec).eval()


def scrambled(theirs: Any) -> Any:
    """Norms and biases away from 1 and 0, so that each weight matters."""
    generator = torch.Generator().manual_seed(5)
    for parameter in theirs.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=generator)
    return theirs


@torch.no_grad()
def copy_gpt2(theirs: Any, ours: Transformer) -> None:
    """GPT-2 writes its linear maps as (in, out)."""
    pairs: list[tuple[Any, Any]] = [(ours.frontend, {"table": theirs.transformer.wte.weight})]
    pairs.append((ours.frontend.positions, {"table": theirs.transformer.wpe.weight}))
    for block, other in zip(ours.blocks, theirs.transformer.h, strict=True):
        mix, forward = block.branches  # type: ignore[union-attr]
        pairs += [(mix.norm, same(other.ln_1)), (forward.norm, same(other.ln_2))]
        pairs += [(mix.body.qkv, turned(other.attn.c_attn)), (mix.body.output, turned(other.attn.c_proj))]
        pairs += [(forward.body.up, turned(other.mlp.c_fc)), (forward.body.down, turned(other.mlp.c_proj))]
    fill(ours, [*pairs, (ours.norm, same(theirs.transformer.ln_f))])


@torch.no_grad()
def copy_llama(theirs: Any, ours: Transformer) -> None:
    pairs: list[tuple[Any, Any]] = [
        (ours.frontend, {"table": theirs.model.embed_tokens.weight}),
        (ours.norm, same(theirs.model.norm)),
    ]
    for block, other in zip(ours.blocks, theirs.model.layers, strict=True):
        mix, forward = block.branches  # type: ignore[union-attr]
        pairs += [(mix.norm, same(other.input_layernorm)), (forward.norm, same(other.post_attention_layernorm))]
        a, m = other.self_attn, other.mlp
        pairs.append((mix.body.qkv, {"weight": torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight))}))
        pairs += [(mix.body.output, same(a.o_proj)), (forward.body.down, same(m.down_proj))]
        pairs.append((forward.body.gate_up, {"weight": torch.cat((m.gate_proj.weight, m.up_proj.weight))}))
    if not ours.spec.head.tied:
        pairs.append((ours.head, {"weight": theirs.lm_head.weight}))
    fill(ours, pairs)


def same(module: Any) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def turned(module: Any) -> dict[str, Tensor]:
    return {"weight": module.weight.t(), "bias": module.bias}


def fill(ours: Transformer, pairs: list[tuple[Any, dict[str, Tensor]]]) -> None:
    """Every parameter here is written exactly once."""
    left = {id(p): name for name, p in ours.named_parameters()}
    for module, values in pairs:
        for name, value in values.items():
            parameter = getattr(module, name)
            assert parameter.shape == value.shape, f"{name}: {tuple(parameter.shape)} here, {tuple(value.shape)} there"
            left.pop(id(parameter))
            parameter.copy_(value)
    assert not left, f"never written: {', '.join(left.values())}"


def pair(name: str) -> tuple[Any, Transformer]:
    torch.manual_seed(0)
    if name == "GPT-2":
        theirs, ours = gpt2()
        copy_gpt2(scrambled(theirs), ours)
        return theirs, ours
    scaling = Llama3Scaling(factor=8.0, original_length=32) if "3" in name else None
    theirs, ours = llama(scaling, tied="tied" in name)
    copy_llama(scrambled(theirs), ours)
    return theirs, ours


NAMES = ("GPT-2", "Llama 2", "Llama 3.2, tied")


@pytest.fixture(scope="module", params=NAMES)
def models(request: pytest.FixtureRequest) -> tuple[Any, Transformer]:
    return pair(request.param)


def ids(batch: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-5) -> None:
    assert theirs.std() > 0.1, "logits that are all alike would agree with anything"
    assert (ours - theirs).abs().max() < tolerance


@torch.no_grad()
def test_logits_equal_those_of_transformers(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    assert_close(ours(ids())[0], theirs(ids()).logits)


@torch.no_grad()
def test_a_wrong_epsilon_is_noticed(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    norms = [module for module in ours.modules() if hasattr(module, "eps")]
    for norm in norms:
        norm.eps /= 10  # type: ignore[assignment,operator]
    with pytest.raises(AssertionError):
        assert_close(ours(ids())[0], theirs(ids()).logits)
    for norm in norms:
        norm.eps *= 10  # type: ignore[assignment,operator]


@torch.no_grad()
def test_rows_of_different_lengths_have_the_same_logits(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    lengths = torch.tensor([LENGTH, 7, 23])
    real = torch.arange(LENGTH) < lengths[:, None]
    expected = theirs(ids(), attention_mask=real.long()).logits
    assert_close(ours(Signal(ids(), lengths=lengths))[0][real], expected[real])


@torch.no_grad()
def test_decoding_with_the_state_equals_decoding_with_their_cache(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    first = theirs(ids()[:, :30], use_cache=True)
    _, state = ours(ids()[:, :30], ours.init_state(3))
    cache = first.past_key_values
    for i in range(30, LENGTH):
        step = theirs(ids()[:, i : i + 1], past_key_values=cache, use_cache=True)
        logits, state = ours(ids()[:, i : i + 1], state)
        assert_close(logits, step.logits)


def test_gradients_equal_those_of_transformers(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    theirs(ids()).logits.logsumexp(-1).sum().backward()
    ours(ids())[0].logsumexp(-1).sum().backward()
    table = theirs.get_input_embeddings().weight.grad
    assert table.abs().max() > 0.1
    torch.testing.assert_close(ours.frontend.table.grad, table, rtol=1e-4, atol=1e-4 * float(table.abs().max()))
    theirs.zero_grad()
    ours.zero_grad()


def test_the_number_of_parameters_is_that_of_transformers(models: tuple[Any, Transformer]) -> None:
    theirs, ours = models
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
