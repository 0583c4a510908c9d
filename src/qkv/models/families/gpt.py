"""GPT-2 and GPT-3 as a function of their sizes: pre-norm, learned positions, GELU, one embedding and output table."""

from __future__ import annotations

from qkv.spec.branches import Attention, FeedForward
from qkv.spec.model import Block, Model, Text


def gpt(
    width: int, num_layers: int, num_heads: int, context_length: int, dropout: float = 0.0, vocab_size: int = 50257
) -> Model:
    """Return the spec of a pre-norm decoder with 4 · ``width`` hidden features; ``vocab_size``: by default GPT-2's."""
    branches = (Attention(num_heads=num_heads, dropout=dropout), FeedForward(hidden=4 * width, activation="gelu_tanh"))
    return Model(
        width=width,
        num_layers=num_layers,
        context_length=context_length,
        frontend=Text(vocab_size=vocab_size, dropout=dropout),
        blocks=(Block(branches=branches, dropout=dropout),),
    )


def gpt2() -> Model:
    """Return the spec of GPT-2 small (2019): width 768, 12 layers, 12 heads, 1,024 positions, 124,439,808 weights."""
    return gpt(width=768, num_layers=12, num_heads=12, context_length=1024, dropout=0.1)


def gpt3() -> Model:
    """Return the spec of GPT-3 (2020): width 12288, 96 layers, 96 heads, 2,048 positions, 174,604,259,328 parameters.

    The paper (Brown et al. 2020) alternates dense and banded layers without naming the width of the band; here every
    layer is dense. Masks have no parameters.
    """
    return gpt(width=12288, num_layers=96, num_heads=96, context_length=2048)
