"""BlenderBot (Roller et al. 2021): encoder–decoders with learned positions, in a large and a small form.

The large form is pre-norm, with a norm at the end of each stack. The small form is post-norm, with norms of the
embeddings: in the encoder after positions are added, in the decoder before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import body
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.parts import LayerNorm, NoNorm


def _sizes(layers: tuple[int, int], hidden: int, heads: int) -> dict[str, int]:
    """Return the default sizes of a form; ``layers``: numbers of layers of encoder and decoder."""
    both = {
        f"{stack}_{key}": size
        for stack in ("encoder", "decoder")
        for key, size in (("ffn_dim", hidden), ("attention_heads", heads))
    }
    return {**both, "encoder_layers": layers[0], "decoder_layers": layers[1]}


def _family(
    name: str, kind: str, model_type: str, base: str, form: bart_like.BartLike, defaults: Mapping[str, Any]
) -> Family:
    architectures = {
        f"{kind}ForConditionalGeneration": bart_like.writing(),
        f"{kind}Model": body(bart_like.TABLE),
        f"{kind}ForCausalLM": bart_like.alone(),
    }
    return bart_like.family(name, model_type, architectures, form, defaults, base=base)


_POSITIONS = bart_like.learned(0)
LARGE = _family(
    "Blenderbot",
    "Blenderbot",
    "blenderbot",
    "mBART",
    bart_like.BartLike("pre", LayerNorm(), _POSITIONS),
    {"vocab_size": 8008, "d_model": 2560, "max_position_embeddings": 128, **_sizes((2, 24), 10240, 32)},
)
SMALL = _family(
    "Blenderbot small",
    "BlenderbotSmall",
    "blenderbot-small",
    "BART",
    bart_like.BartLike("post", NoNorm(), _POSITIONS, LayerNorm(), norm_first=True),
    {"d_model": 512, "max_position_embeddings": 512, **_sizes((8, 8), 2048, 16)},
)

register(LARGE, SMALL)
