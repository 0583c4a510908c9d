"""GPT (Radford et al. 2018): GPT-2's names and sizes, with post-norm blocks and no norm at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.heads import body, language_model, of_decoder
from qkv.interop.families.decoders import gpt2
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model
from qkv.spec.parts import Activation, NoNorm

INWARD: dict[str, Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Values of ``afn``, in which "gelu" means the tanh approximation -> activations of qkv."""
OUTWARD = {ours: name for name, ours in reversed(INWARD.items())}
NAMES = (
    NameRule("frontend.table", "transformer.tokens_embed.weight"),
    NameRule("frontend.positions.table", "transformer.positions_embed.weight"),
    *gpt2.NAMES[2:-1],
)


def _with_activation(blocks: tuple[Block, ...], order: Any, activation: Activation) -> tuple[Block, ...]:
    """Return copies of the blocks with ``order``, and with ``activation`` in their feed-forward branches."""
    return tuple(
        block.changed(order=order, branches=(first, second.changed(activation=activation)))
        for block in blocks
        for first, second in [block.branches]
    )


def spec(config: Config, head: Head) -> Model:
    """Build the spec of GPT: like GPT-2, with post-norm blocks, no final norm, and feed-forward hidden size 4 D."""
    activation = config.word("afn", "gelu", INWARD)
    config.fixed("scale_attn_weights", True, "the scale of attention")
    config.fixed("scale_attn_by_inverse_layer_idx", False, "the scale of attention")
    model = gpt2.spec(config, head)
    return model.changed(blocks=_with_activation(model.blocks, "post", activation), norm=NoNorm())


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not GPT's. Callers read them back to verify."""
    last = spec.layers[0].branches[-1] if spec.layers else None
    if not isinstance(last, FeedForward) or last.activation not in OUTWARD:
        return None
    keys = gpt2.config(spec)
    unread = ("n_inner", "activation_function")
    return keys and {key: value for key, value in keys.items() if key not in unread} | {"afn": OUTWARD[last.activation]}


OPENAI_GPT = replace(
    gpt2.GPT2,
    name="GPT",
    base="GPT-2",
    model_types=("openai-gpt",),
    architectures={
        "OpenAIGPTLMHeadModel": language_model(tied=True),
        "OpenAIGPTModel": body("transformer.tokens_embed.weight"),
        **of_decoder("OpenAIGPT", tags=None, question_answering=False),
    },
    spec=spec,
    config=config,
    names=NAMES,
    defaults={"vocab_size": 40478, "n_positions": 512},
    ignored={"transformer.h.{layer}.attn.bias": "a constant mask table"},
    gguf=None,
)

register(OPENAI_GPT)
