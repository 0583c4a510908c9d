"""Layout of a family in GGUF files, for reading and writing.

It consists of metadata keys, config values that are built into llama.cpp, and conversions of tensors. The library gguf
provides the tensor names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from qkv.interop.mapping.conversions import ROTARY_PAIRS, Cut, Way
from qkv.interop.mapping.names import NameRule

Values = Mapping[str, Any]


class MetadataKey(NamedTuple):
    """Key of the metadata, without the architecture's name, and the ``config.json`` key with the same value.

    ``needed`` False: if a file lacks the key, the family's default is used.
    """

    name: str
    config: str
    kind: type = int
    needed: bool = True


class Change(NamedTuple):
    """Conversion of the published tensors whose names match ``pattern``: ``way.inward`` converts them to llama.cpp's.

    ``groups``: config key with the number of heads.
    """

    pattern: str
    way: Way
    groups: str = ""


@dataclass(frozen=True)
class OneMore(Way):
    """Addition of 1 to the weight of a norm: llama.cpp multiplies by the weight, Gemma by 1 + weight."""

    def inward(self, theirs: Any, cut: Cut) -> Tensor:
        return theirs[0] + 1.0

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours - 1.0,)


@dataclass(frozen=True)
class OneRow(Way):
    """Vector in llama.cpp (D) of a published matrix with one row (1, D)."""

    def inward(self, theirs: Any, cut: Cut) -> Tensor:
        return theirs[0].flatten()

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.reshape(1, -1),)


@dataclass(frozen=True)
class GGUFLayout:
    """Layout of a published family in GGUF.

    ``architecture``: published architecture of its language model; ``name``: its architecture name in llama.cpp. If
    several families have the same name in llama.cpp, a file is read as the first of them with or without experts.
    """

    architecture: str
    name: str
    keys: tuple[MetadataKey, ...]
    built_in: Mapping[str, Any | Callable[[Values], Any]]
    """Config values that llama.cpp fixes, or functions that compute them from other values."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Config key -> name of a tensor; the key is true if the file contains that tensor."""
    changes: tuple[Change, ...] = ()
    base: str = "rope_theta"
    """Config key of RoPE's base."""
    derived: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    """Further metadata keys that llama.cpp requires -> functions that compute them from the config."""
    names: tuple[NameRule, ...] = ()
    """Name table of tensors that llama.cpp stores in other parts than published files do; it precedes the family's."""
    turned: str = ""
    """Config key of the fraction of a head that RoPE rotates; "" if it rotates whole heads."""
    experts: bool = False
    """True if its layers have experts, whose number is the metadata key ``EXPERTS``."""
    factors: bool = False
    """True if llama.cpp reads a tensor of factors of RoPE's frequencies (Llama 3)."""
    windows: int = 0
    """Default period of full-attention layers among sliding-window layers, if a file lacks it; 0: no windows."""
    note: str = ""
    """Sentence on a difference between llama.cpp and the published model."""

    def changed(self, name: str) -> Change | None:
        """Return the conversion of the published tensor ``name``; None if GGUF stores it unchanged."""
        return next((change for change in self.changes if re.search(change.pattern, name)), None)


SIZES = (
    MetadataKey("embedding_length", "hidden_size"),
    MetadataKey("block_count", "num_hidden_layers"),
    MetadataKey("attention.head_count", "num_attention_heads"),
    MetadataKey("feed_forward_length", "intermediate_size"),
    MetadataKey("context_length", "max_position_embeddings"),
)
"""Metadata keys of the sizes that most families have."""
GATED = (
    *SIZES,
    MetadataKey("attention.head_count_kv", "num_key_value_heads", needed=False),
    MetadataKey("attention.layer_norm_rms_epsilon", "rms_norm_eps", float),
    MetadataKey("rope.freq_base", "rope_theta", float, needed=False),
)
"""Metadata keys of families with Llama's blocks."""
HEADS = (
    MetadataKey("attention.key_length", "head_dim", needed=False),
    MetadataKey("attention.value_length", "head_dim", needed=False),
)
"""Metadata keys of the head width, for families in which it may differ from D / H."""
ROTATED = MetadataKey("rope.dimension_count", "head_dim", needed=False)
"""Metadata key of the number of rotated features per head, for families that rotate whole heads."""
PAIRS = (
    Change(r"\.q_proj\.", ROTARY_PAIRS, "num_attention_heads"),
    Change(r"\.k_proj\.", ROTARY_PAIRS, "num_key_value_heads"),
)
"""Conversions of queries and keys for families whose RoPE pairs are adjacent in llama.cpp."""
EXPERTS = "expert_count"
"""Metadata key of the number of experts of a layer."""


def keys_of_experts(number: str, *sizes: MetadataKey) -> tuple[MetadataKey, ...]:
    """Return the metadata keys of a family with Llama's blocks and experts, whose number is the config key ``number``.

    ``sizes``: keys of the sizes of experts, if a config has them beside ``intermediate_size``.
    """
    return (
        *GATED,
        *HEADS,
        MetadataKey(EXPERTS, number),
        MetadataKey("expert_used_count", "num_experts_per_tok"),
        *sizes,
    )


def size_of(values: Values, layout: GGUFLayout, key: str) -> int:
    """Return the config value of the metadata key named ``key``; 1 if the family has no such key."""
    return next((values[each.config] for each in layout.keys if each.name == key), 1)


def width_of_head(values: Values) -> int:
    """Return the number of features of a head for a config without ``head_dim``."""
    return values["hidden_size"] // values["num_attention_heads"]


def cut_of_change(change: Change, rows: int, values: Values) -> Cut:
    """Return the row layout of a converted tensor: three equal parts (q, k, v), and the number of heads."""
    return Cut((rows // 3,) * 3, values.get(change.groups) or 1)
