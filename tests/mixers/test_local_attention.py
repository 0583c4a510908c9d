"""The Reformer's local attention is attention under ``blocks``: against the published layer, outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LocalSelfAttention

from qkv.spec.branches import Attention
from qkv.spec.masks import Blocks, Causal

LENGTH, CHUNK = 20, 4


def published(ours: Any, back: int, causal: bool) -> LocalSelfAttention:
    config = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=3,
        attention_head_size=5,
        local_attn_chunk_length=CHUNK,
        local_num_chunks_before=back,
        local_num_chunks_after=0,
        local_attention_probs_dropout_prob=0.0,
        is_decoder=causal,
    )
    theirs = LocalSelfAttention(config).double()
    for name, weight in zip(("query", "key", "value"), ours.qkv.weight.chunk(3), strict=True):
        getattr(theirs, name).weight.data = weight.data.clone()
    return theirs


@pytest.mark.parametrize(("back", "causal"), [(0, True), (0, False), (1, True), (2, True)])
def test_outputs_and_gradients_equal_those_of_the_published_layer(back: int, causal: bool) -> None:
    """With a chunk before and no causal mask their first chunk sees the last, by wrapping round; left out here."""
    blocks = Blocks(size=CHUNK, back=back)
    ours = built(Attention(num_heads=3, head_dim=5, bias=False, mask=Causal() & blocks if causal else blocks))
    theirs = published(ours, back, causal)
    lengths = torch.tensor([LENGTH, 13])
    real = torch.arange(LENGTH) < lengths[:, None]
    x, y = some(2, LENGTH).requires_grad_(), some(2, LENGTH).requires_grad_()
    seen, expected = applied(ours, x, lengths), their_output(theirs, ours, y, real)
    torch.testing.assert_close(seen[real], expected[real], rtol=1e-6, atol=1e-6)
    seen[real].pow(3).sum().backward()
    expected[real].pow(3).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-6)
    grads = torch.cat([getattr(theirs, name).weight.grad for name in ("query", "key", "value")])
    torch.testing.assert_close(ours.qkv.weight.grad, grads, rtol=1e-5, atol=1e-6)


def their_output(theirs: LocalSelfAttention, ours: Any, y: Tensor, real: Tensor) -> Tensor:
    return theirs(y, attention_mask=real).hidden_states @ ours.output.weight.detach().T


def test_what_is_remembered_is_a_few_blocks() -> None:
    ours = built(Attention(num_heads=3, mask=Causal() & Blocks(size=4, back=1)))
    assert ours.state_bytes(8) == ours.state_bytes(1000) == 2 * ours.state_bytes(4)
