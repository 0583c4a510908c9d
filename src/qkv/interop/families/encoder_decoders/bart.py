"""BART (Lewis et al. 2019), mBART (Liu et al. 2020), PLBart (Ahmad et al. 2021) and MVP (Tang et al. 2022).

These are encoder–decoders with learned positions with offset 2 and a norm of the embeddings. BART, PLBart and MVP have
post-norm blocks and no norm at the end of a stack; mBART has pre-norm blocks and a norm at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import answering, body
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, NoNorm, Norm

_OFFSET = 2


def _form(order: Literal["pre", "post"], last: Norm) -> bart_like.BartLike:
    return bart_like.BartLike(order, last, bart_like.learned(_OFFSET), LayerNorm())


def _checked(form: bart_like.BartLike) -> Callable[[Config, Head], Model]:
    """Return a function that builds a spec, and refuses early configs with other values of constant keys."""
    fixed: tuple[tuple[str, Any, str], ...] = (
        ("normalize_before", form.order == "pre", "position of the norms in a block"),
        ("normalize_embedding", True, "the norm of the embeddings"),
        ("add_final_layer_norm", not form.last.identity, "the norm at the end of a stack"),
        ("static_position_embeddings", False, "the position vectors"),
        ("extra_pos_embeddings", _OFFSET, "the row of the first position"),
        ("add_bias_logits", False, "the head"),
        ("use_prompt", False, "the keys of attention"),
    )

    def spec(config: Config, head: Head) -> Model:
        """Build the spec of BART, mBART, PLBart or MVP; see ``bart_like.BartLike.spec``."""
        for key, only, meaning in fixed:
            config.fixed(key, only, meaning)
        return form.spec(config, head)

    return spec


def _family(
    name: str,
    kind: str,
    form: bart_like.BartLike,
    defaults: Mapping[str, Any],
    answers: bool = True,
    base: str = "BART",
    **fields: Any,
) -> Family:
    architectures = {
        f"{kind}ForConditionalGeneration": bart_like.writing(),
        f"{kind}Model": body(bart_like.TABLE),
        f"{kind}ForSequenceClassification": bart_like.CLASSES,
        **({f"{kind}ForQuestionAnswering": answering("qa_outputs")} if answers else {}),
        f"{kind}ForCausalLM": bart_like.alone(),
    }
    return bart_like.family(name, name.lower(), architectures, form, defaults, spec=_checked(form), base=base, **fields)


_POST = _form("post", NoNorm())
_PLBART = {
    "vocab_size": 50005,
    "d_model": 768,
    "scale_embedding": True,
    "attention_dropout": 0.1,
    **{f"{stack}_layers": 6 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 3072 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 12 for stack in ("encoder", "decoder")},
}
_PROMPT = dict.fromkeys(("prompt_length", "prompt_mid_dim"), "part of the prompt, which use_prompt turns on")

BART = _family("BART", "Bart", _POST, {"num_labels": 3}, base="")
MBART = _family("mBART", "MBart", _form("pre", LayerNorm()), {})
PLBART = _family(
    "PLBart",
    "PLBart",
    _POST,
    _PLBART,
    answers=False,
    synonyms={**bart_like.SYNONYMS, "initializer_range": "init_std"},
)
MVP = _family("MVP", "Mvp", _POST, {"vocab_size": 50267}, ignored_config={**bart_like.IGNORED_CONFIG, **_PROMPT})

register(BART, MBART, PLBART, MVP)
