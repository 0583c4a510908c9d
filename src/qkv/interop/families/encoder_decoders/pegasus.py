"""Pegasus (Zhang et al. 2020): pre-norm encoder–decoder with sinusoids, sines first, and final norms."""

from __future__ import annotations

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import body
from qkv.interop.registry import register
from qkv.spec.parts import LayerNorm

PEGASUS = bart_like.family(
    "Pegasus",
    "pegasus",
    {
        "PegasusForConditionalGeneration": bart_like.writing(),
        "PegasusModel": body(bart_like.TABLE),
        "PegasusForCausalLM": bart_like.alone(),
    },
    bart_like.BartLike("pre", LayerNorm(), bart_like.halves, stored=True),
    {},
)

register(PEGASUS)
