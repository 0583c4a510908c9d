"""BigBird-Pegasus (Zaheer et al. 2020) with full attention, which it uses for short rows: pre-norm, learned positions.

Linear maps of attention have biases only with ``use_bias``.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeVar

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import answering, body
from qkv.interop.families.encoders.big_bird import check_full
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.models.blocks import Layered
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm

_FORM = bart_like.BartLike("pre", LayerNorm(), bart_like.learned(0))
_ENCODER = "model.encoder.layers.{layer}.self_attn."
_RENAMED = {
    "coder.layer_norm.": "coder.layernorm_embedding.",
    f"{_ENCODER}q_proj": f"{_ENCODER}self.query",
    f"{_ENCODER}k_proj": f"{_ENCODER}self.key",
    f"{_ENCODER}v_proj": f"{_ENCODER}self.value",
    f"{_ENCODER}out_proj": f"{_ENCODER}output",
}
"""Parts of BART's tensor names -> those of BigBird-Pegasus."""
L = TypeVar("L", bound=Layered)


def _renamed(row: NameRule) -> NameRule:
    names = (reduce(lambda so_far, pair: so_far.replace(*pair), _RENAMED.items(), name) for name in row.published)
    return row._replace(theirs=tuple(names))


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BigBird-Pegasus; see ``bart_like.BartLike.spec``. Raises ``UserError`` for sparse attention,
    which only an encoder has.
    """
    if not bart_like.decodes_alone(config):
        check_full(config)
    model, biased = _FORM.spec(config, head), config.flag("use_bias", False)
    source = None if model.encoder is None else _with_bias(model.encoder, biased)
    return _with_bias(model, biased).changed(encoder=source)


def _with_bias(stack: L, biased: bool) -> L:
    """Return the stack with biases in all linear maps of attention, or without any."""

    def changed(branch: Branch) -> Branch:
        return branch.changed(bias=biased) if isinstance(branch, Attention | CrossAttention) else branch

    blocks = (block.changed(branches=tuple(map(changed, block.branches))) for block in stack.blocks)
    return stack.changed(blocks=tuple(blocks))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys, first = _FORM.config(spec), spec.layers[0].branches[0] if spec.layers else None
    if keys is None or not isinstance(first, Attention):
        return None
    return {**keys, "use_bias": first.bias, "attention_type": "original_full"}


BIGBIRD_PEGASUS = bart_like.family(
    "BigBird-Pegasus",
    "bigbird_pegasus",
    {
        "BigBirdPegasusForConditionalGeneration": bart_like.writing(),
        "BigBirdPegasusModel": body(bart_like.TABLE),
        "BigBirdPegasusForSequenceClassification": bart_like.CLASSES,
        "BigBirdPegasusForQuestionAnswering": answering("qa_outputs"),
        "BigBirdPegasusForCausalLM": bart_like.alone_untied(),
    },
    _FORM,
    {
        "vocab_size": 96103,
        "max_position_embeddings": 4096,
        "activation_function": "gelu_new",
        "scale_embedding": True,
        **{f"{stack}_layers": 16 for stack in ("encoder", "decoder")},
    },
    base="Blenderbot",
    typical={"attention_type": "original_full"},
    spec=spec,
    config=config,
    names=tuple(map(_renamed, bart_like.NAMES)),
    synonyms={**bart_like.SYNONYMS, "attention_probs_dropout_prob": "attention_dropout"},
    ignored_config={
        **bart_like.IGNORED_CONFIG,
        **dict.fromkeys(("attention_type", "block_size", "num_random_blocks"), "read only by attention to blocks"),
    },
)

register(BIGBIRD_PEGASUS)
