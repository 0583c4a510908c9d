"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), as a function of its sizes.

The paper's two models are encoder–decoders. Here each is a decoder-only model of the same sizes: post-norm blocks of
causal attention and a ReLU feed-forward, sinusoidal positions, embeddings scaled by √D, one table for embedding and
output.
"""

from __future__ import annotations

from qkv.spec.branches import Attention, FeedForward
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoNorm, Sinusoidal


def vanilla(width: int, num_layers: int, num_heads: int, hidden: int, dropout: float, vocab_size: int = 37000) -> Model:
    """Return the spec of a post-norm decoder with 512 positions. The paper's vocabulary has 37,000 tokens."""
    block = Block(
        branches=(Attention(num_heads=num_heads), FeedForward(hidden=hidden, activation="relu")),
        order="post",
        dropout=dropout,
    )
    frontend = Text(vocab_size=vocab_size, positions=Sinusoidal(), dropout=dropout, scale=True)
    return Model(
        width=width, num_layers=num_layers, context_length=512, frontend=frontend, blocks=(block,), norm=NoNorm()
    )


def base() -> Model:
    """Return the spec of the base model (Table 3): width 512, 6 layers, 8 heads, feed-forward 2048, dropout 0.1."""
    return vanilla(width=512, num_layers=6, num_heads=8, hidden=2048, dropout=0.1)


def big() -> Model:
    """Return the spec of the big model (Table 3): width 1024, 6 layers, 16 heads, feed-forward 4096, dropout 0.3."""
    return vanilla(width=1024, num_layers=6, num_heads=16, hidden=4096, dropout=0.3)
