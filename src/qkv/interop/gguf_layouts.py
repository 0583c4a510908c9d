"""Layouts of GGUF: keys of the metadata and changes of tensors of each family. They are read in both directions.

A family's model has a ``config.json`` and published tensors (``qkv.interop.families``); a row here says under which
keys GGUF holds the config's values, which values llama.cpp has built in, and how it changes tensors. Names of tensors
are those of the library gguf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from qkv.interop.mapping.conversions import INTERLEAVED, ROTARY_PAIRS, TRANSPOSED, Cut, Way

Values = Mapping[str, Any]


class MetadataKey(NamedTuple):
    """Key of the metadata, after the architecture's name, and the key of ``config.json`` with the same value.

    ``needed`` False: a file may lack it; the family's default then holds.
    """

    name: str
    config: str
    kind: type = int
    needed: bool = True


class Change(NamedTuple):
    """Conversion of the published tensors whose names match ``pattern``: ``way.inward`` gives llama.cpp's. ``groups``:
    config key with the number of heads.
    """

    pattern: str
    way: Way
    groups: str = ""


@dataclass(frozen=True)
class OneMore(Way):
    """Addition of 1: llama.cpp multiplies by the weight of a norm, Gemma by 1 + weight."""

    def inward(self, theirs: Any, cut: Cut) -> Tensor:
        return theirs[0] + 1.0

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours - 1.0,)


@dataclass(frozen=True)
class GGUFLayout:
    """Form of a published family in GGUF.

    ``family``: its name in qkv; ``architecture``: of its language model; ``name``: that of llama.cpp.
    """

    family: str
    architecture: str
    name: str
    keys: tuple[MetadataKey, ...]
    built_in: Mapping[str, Any | Callable[[Values], Any]]
    """Config values that llama.cpp takes for granted, or functions of the other values that give them."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Config keys that are true if the file holds a tensor."""
    changes: tuple[Change, ...] = ()
    base: str = "rope_theta"
    """Config key of RoPE's base."""
    derived: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    """Further keys that llama.cpp needs, and functions of the config that give them."""
    turned: str = ""
    """Config key of the fraction of a head that RoPE turns; "": all of it."""
    scaled: bool = True
    """True if llama.cpp reads a scaling of RoPE."""
    factors: bool = False
    """True if llama.cpp reads factors of RoPE's frequencies (Llama 3)."""
    windows: int = 0
    """Every how many-th layer has full attention if a file does not say; 0: no layer has a sliding window."""
    note: str = ""
    """In what llama.cpp differs from the published model."""

    def changed(self, name: str) -> Change | None:
        """Conversion of the published tensor ``name``; None if it is stored as it is."""
        return next((change for change in self.changes if re.search(change.pattern, name)), None)


_SIZES = (
    MetadataKey("embedding_length", "hidden_size"),
    MetadataKey("block_count", "num_hidden_layers"),
    MetadataKey("attention.head_count", "num_attention_heads"),
    MetadataKey("feed_forward_length", "intermediate_size"),
    MetadataKey("context_length", "max_position_embeddings"),
)
_GATED = (
    *_SIZES,
    MetadataKey("attention.head_count_kv", "num_key_value_heads", needed=False),
    MetadataKey("attention.layer_norm_rms_epsilon", "rms_norm_eps", float),
    MetadataKey("rope.freq_base", "rope_theta", float, needed=False),
)
_HEADS = (
    MetadataKey("attention.key_length", "head_dim", needed=False),
    MetadataKey("attention.value_length", "head_dim", needed=False),
)
_TURNED = MetadataKey("rope.dimension_count", "head_dim", needed=False)
_PAIRS = (
    Change(r"\.q_proj\.", ROTARY_PAIRS, "num_attention_heads"),
    Change(r"\.k_proj\.", ROTARY_PAIRS, "num_key_value_heads"),
)
_FULL = {"sliding_window": None}
_QWEN = {"hidden_act": "silu", "use_sliding_window": False, "sliding_window": None}


def _width_of_head(values: Values) -> int:
    return values["hidden_size"] // values["num_attention_heads"]


def _scale_of(layers: int) -> Callable[[Values], int]:
    """Gemma's ``query_pre_attn_scalar`` in llama.cpp: the width of a head, or in a model of ``layers`` layers D / H."""
    return lambda values: (
        _width_of_head(values) if values["num_hidden_layers"] == layers else values.get("head_dim", 256)
    )


LLAMA = GGUFLayout(
    "Llama",
    "LlamaForCausalLM",
    "llama",
    (*_GATED, *_HEADS, _TURNED),
    {"hidden_act": "silu"},
    {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"},
    _PAIRS,
    factors=True,
)
LAYOUTS: tuple[GGUFLayout, ...] = (
    GGUFLayout(
        "GPT-2",
        "GPT2LMHeadModel",
        "gpt2",
        (
            MetadataKey("embedding_length", "n_embd"),
            MetadataKey("block_count", "n_layer"),
            MetadataKey("attention.head_count", "n_head"),
            MetadataKey("feed_forward_length", "n_inner"),
            MetadataKey("context_length", "n_positions"),
            MetadataKey("attention.layer_norm_epsilon", "layer_norm_epsilon", float),
        ),
        {"activation_function": "gelu_new"},
        changes=(Change(r"\.(c_attn|c_proj|c_fc)\.weight$", TRANSPOSED),),
        base="",
    ),
    LLAMA,
    GGUFLayout(
        "Mistral",
        "MistralForCausalLM",
        "llama",
        (*_GATED, *_HEADS, _TURNED),
        {"hidden_act": "silu", **_FULL},
        changes=_PAIRS,
    ),
    GGUFLayout("Qwen2", "Qwen2ForCausalLM", "qwen2", _GATED, {**_QWEN, "head_dim": _width_of_head}),
    GGUFLayout("Qwen3", "Qwen3ForCausalLM", "qwen3", (*_GATED, *_HEADS), {**_QWEN, "attention_bias": False}),
    GGUFLayout(
        "Gemma",
        "GemmaForCausalLM",
        "gemma",
        (*_GATED, *_HEADS),
        {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False, "tie_word_embeddings": True},
        changes=(Change(r"norm\.weight$", OneMore()),),
    ),
    GGUFLayout(
        "Gemma 2",
        "Gemma2ForCausalLM",
        "gemma2",
        (
            *_GATED,
            *_HEADS,
            MetadataKey("attention.sliding_window", "sliding_window", needed=False),
            MetadataKey("attn_logit_softcapping", "attn_logit_softcapping", float, needed=False),
            MetadataKey("final_logit_softcapping", "final_logit_softcapping", float, needed=False),
        ),
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": _scale_of(46),
        },
        changes=(Change(r"norm\.weight$", OneMore()),),
        windows=2,
    ),
    GGUFLayout(
        "Gemma 3",
        "Gemma3ForCausalLM",
        "gemma3",
        (
            *_GATED,
            *_HEADS,
            MetadataKey("attention.sliding_window", "sliding_window", needed=False),
            MetadataKey("rope.freq_base_swa", "rope_local_base_freq", float, needed=False),
            MetadataKey("final_logit_softcapping", "final_logit_softcapping", float, needed=False),
        ),
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "query_pre_attn_scalar": _scale_of(62),
        },
        changes=(Change(r"norm\.weight$", OneMore()),),
        windows=6,
    ),
    GGUFLayout(
        "GPT-NeoX",
        "GPTNeoXForCausalLM",
        "gptneox",
        (
            *_SIZES,
            MetadataKey("attention.layer_norm_epsilon", "layer_norm_eps", float),
            MetadataKey("use_parallel_residual", "use_parallel_residual", bool),
            MetadataKey("rope.freq_base", "rotary_emb_base", float, needed=False),
        ),
        {"hidden_act": "gelu", "attention_bias": True},
        changes=(Change(r"\.query_key_value\.", INTERLEAVED, "num_attention_heads"),),
        base="rotary_emb_base",
        turned="rotary_pct",
        note="llama.cpp computes its GELU by the tanh approximation",
    ),
    GGUFLayout(
        "BLOOM",
        "BloomForCausalLM",
        "bloom",
        (
            MetadataKey("embedding_length", "hidden_size"),
            MetadataKey("block_count", "n_layer"),
            MetadataKey("attention.head_count", "n_head"),
            MetadataKey("context_length", "seq_length"),
            MetadataKey("attention.layer_norm_epsilon", "layer_norm_epsilon", float),
        ),
        {},
        changes=(Change(r"\.query_key_value\.", INTERLEAVED, "n_head"),),
        derived={
            "feed_forward_length": lambda values: 4 * values["hidden_size"],
            "attention.head_count_kv": lambda values: values["n_head"],
        },
        base="",
    ),
)
"""Families in GGUF; of several with one name in llama.cpp, a file is read as the first."""


def layout_of(family: str) -> GGUFLayout | None:
    """Form of the family with this name in qkv; None if llama.cpp has none that qkv writes."""
    return next((layout for layout in LAYOUTS if layout.family == family), None)


def cut_of_change(change: Change, rows: int, values: Values) -> Cut:
    """Layout of the rows of a changed tensor: three equal parts (q, k, v), and the number of heads."""
    return Cut((rows // 3,) * 3, values.get(change.groups) or 1)
