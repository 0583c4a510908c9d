"""Form of a family in GGUF files, read in both directions: keys of the metadata, values that llama.cpp has built in,
and changes of tensors. Names of tensors are those of the library gguf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from qkv.interop.mapping.conversions import ROTARY_PAIRS, Cut, Way

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

    ``architecture``: of its language model; ``name``: that of llama.cpp. Of several families with one name in
    llama.cpp, a file is read as the first.
    """

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
    factors: bool = False
    """True if llama.cpp reads factors of RoPE's frequencies (Llama 3)."""
    windows: int = 0
    """Every how many-th layer has full attention if a file does not say; 0: no layer has a sliding window."""
    note: str = ""
    """In what llama.cpp differs from the published model."""

    def changed(self, name: str) -> Change | None:
        """Conversion of the published tensor ``name``; None if it is stored as it is."""
        return next((change for change in self.changes if re.search(change.pattern, name)), None)


SIZES = (
    MetadataKey("embedding_length", "hidden_size"),
    MetadataKey("block_count", "num_hidden_layers"),
    MetadataKey("attention.head_count", "num_attention_heads"),
    MetadataKey("feed_forward_length", "intermediate_size"),
    MetadataKey("context_length", "max_position_embeddings"),
)
"""Keys of the sizes that most families have."""
GATED = (
    *SIZES,
    MetadataKey("attention.head_count_kv", "num_key_value_heads", needed=False),
    MetadataKey("attention.layer_norm_rms_epsilon", "rms_norm_eps", float),
    MetadataKey("rope.freq_base", "rope_theta", float, needed=False),
)
"""Keys of families with Llama's blocks."""
HEADS = (
    MetadataKey("attention.key_length", "head_dim", needed=False),
    MetadataKey("attention.value_length", "head_dim", needed=False),
)
"""Keys of the width of a head where it is not D / H."""
ROTATED = MetadataKey("rope.dimension_count", "head_dim", needed=False)
"""Key of the number of rotated features of a head, all of them."""
PAIRS = (
    Change(r"\.q_proj\.", ROTARY_PAIRS, "num_attention_heads"),
    Change(r"\.k_proj\.", ROTARY_PAIRS, "num_key_value_heads"),
)
"""Changes of queries and keys whose rotated features are neighbours in llama.cpp."""


def width_of_head(values: Values) -> int:
    """Features of a head in a config without ``head_dim``."""
    return values["hidden_size"] // values["num_attention_heads"]


def cut_of_change(change: Change, rows: int, values: Values) -> Cut:
    """Layout of the rows of a changed tensor: three equal parts (q, k, v), and the number of heads."""
    return Cut((rows // 3,) * 3, values.get(change.groups) or 1)
