"""Nyströmformer (Xiong et al. 2021) and YOSO (Zeng et al. 2021): BERT's structure with approximate attention.

Both are read in the form that their published code computes by default. Nyströmformer with as many landmarks as
positions of a segment is full attention with a convolution of the values. YOSO computes the expectation over hash
codes. In training, the classification head of transformers also applies dropout to the first position's vector. Neither
code masks padding everywhere, so that only rows without padding are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HeadKeys, answering, masked, pooled_head, problem_keys, tagging
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast, Chained
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import ClassificationHead, Head, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.mixers.lsh_attention import CollisionAttention
from qkv.spec.model import Model
from qkv.system.errors import UserError

RESERVED = 2
"""Rows of the position table before the first position, which max_position_embeddings does not count."""
KERNEL = Chained((Broadcast(1), Broadcast(2)))
"""Conversion of a kernel (H, 1, K, 1) to (H, K)."""
_RATE = HeadKeys(dropout="hidden_dropout_prob")


def names(body: str) -> tuple[NameRule, ...]:
    """Return the name table of both families; ``body``: prefix of the names in files."""
    kernel = f"{body}encoder.layer.{{layer}}.attention.self.conv.weight"
    ours = "blocks.{layer}.branches.0.body.value_convolution.weight"
    return (*bert.names(body), NameRule(ours, kernel, KERNEL))


def body(config: Config, head: Head, types: int, key: str, kernel: int | None) -> Model:
    """Build the spec of BERT's structure whose attention has a convolution of the values.

    ``key``: config key of its kernel size, null for none; ``kernel``: default; ``types``: default number of token
    types.
    """
    model = bert.body(config, head, RESERVED, config.size("type_vocab_size", types))
    size = config.size(key, kernel) if config.has(key) or kernel else None
    changed = with_mixer(model, lambda first: first.changed(value_convolution=size))
    return changed.changed(context_length=config.size("max_position_embeddings"))


def with_mixer(model: Model, change: Callable[[Any], Branch]) -> Model:
    """Return the model with ``change`` applied to the first branch of every block."""
    blocks = [(block, *block.branches) for block in model.blocks]
    return model.changed(blocks=tuple(block.changed(branches=(change(first), *rest)) for block, first, *rest in blocks))


def keys(spec: Model, key: str) -> dict[str, Any] | None:
    """Return config.json keys of a spec that ``body`` builds, the inverse of it; None for another structure."""
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, Attention):
        return None
    base_keys = bert.config(spec)
    fields = {"max_position_embeddings": spec.context_length, key: first.value_convolution}
    return base_keys and {**base_keys, **fields}


# Nyströmformer


def _nystromformer(config: Config, head: Head) -> Model:
    """Build the spec of Nyströmformer with full attention. Raises ``UserError`` for fewer landmarks."""
    landmarks, length = config.size("num_landmarks", 64), config.size("segment_means_seq_len", 64)
    if landmarks != length:
        raise UserError(
            f"{config.source}: num_landmarks is {landmarks} and segment_means_seq_len is {length}, which needs "
            "attention by landmarks with an iterated pseudo-inverse; supported are equal numbers, with which the "
            "published code uses full attention"
        )
    return body(config, head, 2, "conv_kernel_size", 65)


def _nystromformer_config(spec: Model) -> dict[str, Any] | None:
    base_keys = keys(spec, "conv_kernel_size")
    return base_keys if base_keys and base_keys["conv_kernel_size"] else None


# YOSO


def _yoso(config: Config, head: Head) -> Model:
    """Build the spec of YOSO with the expectation over hash codes. Raises ``UserError`` for sampled codes."""
    config.fixed("use_expectation", True, "the weights, which are sampled")
    length = config.size("hash_code_len", 9)
    model = body(config, head, 1, "conv_window", None)

    def collision(attention: Branch) -> Branch:
        assert isinstance(attention, Attention)
        return CollisionAttention(
            num_heads=attention.num_heads,
            mask=Full(),
            hash_length=length,
            value_convolution=attention.value_convolution,
        )

    return with_mixer(model, collision)


def _yoso_config(spec: Model) -> dict[str, Any] | None:
    first = spec.layers[0].branches[0] if spec.layers else None
    if not isinstance(first, CollisionAttention):
        return None
    attention = Attention(num_heads=first.num_heads, mask=Full(), value_convolution=first.value_convolution)
    base_keys = keys(with_mixer(spec, lambda branch: attention), "conv_window")
    return base_keys and {**base_keys, "hash_code_len": first.hash_length}


def _classes(config: Config) -> Head:
    width, activation = config.size("hidden_size", 768), config.word("hidden_act", "gelu", INWARD)
    return pooled_head(config, pooling="first", hidden=width, activation=activation, dropout=_RATE.rate(config))


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "first":
        return None
    return {**problem_keys(head), "hidden_act": OUTWARD[head.activation], "hidden_dropout_prob": head.dropout}


_ROWS = NameRule("head.hidden.*", "classifier.dense.*"), NameRule("head.output.*", "classifier.out_proj.*")


def architectures(stem: str, prefix: str) -> dict[str, Architecture]:
    """Return the architectures of both families by name; ``prefix``: prefix of the body's tensor names."""
    return {
        f"{stem}ForMaskedLM": masked(bert.MASKED_NAMES),
        f"{stem}Model": heads.body(f"{prefix}embeddings.word_embeddings.weight"),
        f"{stem}ForSequenceClassification": Architecture(_classes, _classes_keys, _ROWS),
        f"{stem}ForTokenClassification": tagging("classifier", keys=_RATE),
        f"{stem}ForQuestionAnswering": answering("qa_outputs"),
    }


NYSTROMFORMER = Family(
    name="Nyströmformer",
    base="BERT",
    model_types=("nystromformer",),
    architectures=architectures("Nystromformer", "nystromformer."),
    spec=_nystromformer,
    config=_nystromformer_config,
    names=names("nystromformer."),
    prefix="nystromformer.",
    ignored={"nystromformer.embeddings.position_ids": "constant position ids 2, 3, 4, …"},
    ignored_config={**bert.IGNORED_CONFIG, "inv_coeff_init_option": "read only by attention with landmarks"},
    defaults={
        "vocab_size": 30000,
        "max_position_embeddings": 510,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
    },
    typical={"conv_kernel_size": 65},
)
YOSO = replace(
    NYSTROMFORMER,
    name="YOSO",
    base="",
    model_types=("yoso",),
    architectures=architectures("Yoso", "yoso."),
    spec=_yoso,
    config=_yoso_config,
    names=names("yoso."),
    prefix="yoso.",
    ignored={"yoso.embeddings.position_ids": "constant position ids 2, 3, 4, …"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        **dict.fromkeys(
            ("num_hash", "use_fast_hash", "lsh_backward"), "read only by attention with sampled hash codes"
        ),
        "attention_probs_dropout_prob": "not applied by the published code",
    },
    defaults={"vocab_size": 50265, "max_position_embeddings": 4096},
    typical={},
)

register(NYSTROMFORMER, YOSO)
