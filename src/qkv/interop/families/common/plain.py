"""Common parts of decoders with LayerNorm and a feed-forward without gate, whose config keys have different names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.mapping.config import Config
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import LayerNorm, NoNorm, Positions


@dataclass(frozen=True)
class PlainKeys:
    """Names of a family's config keys, for conversion in both directions; ``eps`` None: ε is 1e-5 and has no key."""

    width: str
    layers: str
    heads: str
    hidden: str
    activation: str
    length: str
    dropout: str
    attention_dropout: str
    eps: str | None = None
    initial: str = "initializer_range"

    def attention(self, config: Config, **chosen: Any) -> Attention:
        """Build the attention spec of a config; ``chosen``: fields that the family sets."""
        heads, dropout = config.size(self.heads), config.number(self.attention_dropout, 0.0)
        return Attention(num_heads=heads, dropout=dropout, **chosen)

    def norm(self, config: Config) -> LayerNorm:
        """Build the norm spec of a config, for all branches and the final norm."""
        return LayerNorm(eps=config.number(self.eps, 1e-5)) if self.eps else LayerNorm()

    def model(
        self,
        config: Config,
        head: Head,
        attentions: Sequence[Attention],
        positions: Positions,
        order: Literal["pre", "post", "parallel"] = "pre",
        bias: bool = True,
        scale: bool = False,
    ) -> Model:
        """Build the spec of a config.

        ``attentions``: attention of each layer; ``bias``: whether feed-forwards have biases; ``scale``: whether
        embeddings are scaled. Post-norm stacks end without a norm.
        """
        norm, dropout = self.norm(config), config.number(self.dropout, 0.0)
        width = config.size(self.width)
        hidden = config.size(self.hidden) if config.has(self.hidden) else 4 * width
        activation = config.word(self.activation, allowed=INWARD)
        feed_forward = FeedForward(hidden=hidden, activation=activation, bias=bias)
        blocks = [
            Block(branches=(attention, feed_forward), order=order, norm=norm, dropout=dropout)
            for attention in attentions
        ]
        return Model(
            width=width,
            num_layers=len(blocks),
            context_length=config.size(self.length),
            frontend=Text(vocab_size=config.size("vocab_size"), positions=positions, dropout=dropout, scale=scale),
            blocks=shortest_pattern(blocks),
            norm=NoNorm() if order == "post" else norm,
            head=head,
            init_std=config.number(self.initial, 0.02),
        )

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its first block has another structure."""
        match spec.layers[:1]:
            case (
                Block(branches=(Attention() as attention, FeedForward() as think), norm=LayerNorm() as norm) as block,
            ):
                pass
            case _:
                return None
        return {
            self.width: spec.width,
            self.layers: len(spec.layers),
            self.heads: attention.num_heads,
            self.hidden: think.hidden_at(spec.width),
            self.activation: OUTWARD[think.activation],
            self.length: spec.context_length,
            self.dropout: block.dropout,
            self.attention_dropout: attention.dropout,
            self.initial: spec.init_std,
            "vocab_size": spec.vocab_size,
            **({self.eps: norm.eps} if self.eps else {}),
        }


GPT2_KEYS = PlainKeys(
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "activation_function",
    "n_positions",
    "resid_pdrop",
    "attn_pdrop",
    eps="layer_norm_epsilon",
)
"""Config keys of GPT-2, which other families also use."""
