"""Published checkpoints with an adapter in the format of the PEFT library.

Low-rank pairs (LoRA, Hu et al. 2021) are merged into the stored tensors with the same published names, W + s B A, and
modules saved in full replace modules of the base model, before any name is converted. So an adapted checkpoint is
loaded, trained and exported like any other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from qkv.interop.files.folder import Stored, read_json
from qkv.interop.files.places import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from qkv.interop.files.safetensors_file import Entry, entries
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family, named_as_now
from qkv.interop.mapping.names import expression, fill_indices
from qkv.layers.linear.lora import merged_weight
from qkv.system.errors import UserError, nearest

_PREFIX = "base_model.model."
_TASKS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"} | {
    "QUESTION_ANS": "ForQuestionAnswering"
}
"""PEFT's task type -> ending of the architecture's name. For other task types, the base model's head stays."""
_OTHER_TASKS = ("CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations of an adapter that leave the weights of the base model unchanged."""
_DESCRIPTIVE = (
    *("auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config"),
    *("exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "loftq_config"),
    *("megatron_config", "megatron_core", "modules_to_save", "parent_library", "peft_version", "qalora_group_size"),
    *("revision", "runtime_config", "target_modules"),
)
"""Keys of adapter_config.json that are ignored, because they describe how the adapter was trained."""


class Pair(NamedTuple):
    """Low-rank pair of a linear layer: matrices A (R, I) and B (O, R), and the scale s."""

    a: Entry
    b: Entry
    scale: float


class StoredAdapter(NamedTuple):
    """Contents of a PEFT adapter.

    pairs: low-rank pairs by the published name of the weight. whole: tensors saved in full, by published name. modules:
    names in ``whole`` that belong to ``modules_to_save``, and are therefore not tied to another tensor. transposed:
    True if weights are stored as (I, O).
    """

    folder: Path
    pairs: Mapping[str, Pair]
    whole: Mapping[str, Entry]
    modules: frozenset[str]
    transposed: bool

    def __str__(self) -> str:
        ranks = sorted({pair.a.shape[0] for pair in self.pairs.values()})
        rank = f"rank {', '.join(map(str, ranks))} on {len(self.pairs)} matrices; " if ranks else ""
        return f"{rank}{len(self.whole)} tensors in full"


class Merged:
    """Stored tensor with a low-rank pair: W + s B A, or W + (s B A)^T for a matrix stored (I, O)."""

    def __init__(self, base: Stored, pair: Pair, transposed: bool):
        self.base, self.pair, self.transposed = base, pair, transposed
        self.dtype, self.shape, self.numbers = base.dtype, base.shape, base.numbers

    def read(self) -> Tensor:
        """Read the weight and the factors of its adapter; return their sum W + scale · B A, in fp32 or wider."""
        w, a, b = self.base.read(), self.pair.a.read(), self.pair.b.read()
        merged = merged_weight(w.t() if self.transposed else w, a, b, self.pair.scale)
        return merged.t().contiguous() if self.transposed else merged

    def read_into(self, out: Tensor) -> None:
        """Merge into ``out``, which has the shape of the tensor."""
        out.copy_(self.read())


def base_of(folder: Path) -> tuple[str, str | None]:
    """Return (name or folder, revision) of the base model of the adapter in ``folder``. Raises ``UserError``."""
    config = _config(folder)
    revision = config.word("revision") if config.has("revision") else None
    return config.word("base_model_name_or_path") if config.has("base_model_name_or_path") else "", revision


def task_of(folder: Path) -> str | None:
    """Return the ending of the architecture name that the task of the adapter in ``folder`` requires.

    None if the task requires none: the base model then keeps its architecture.
    """
    config = _config(folder)
    tasks = {**_TASKS, **dict.fromkeys(_OTHER_TASKS)}
    return config.word("task_type", allowed=tasks) if config.has("task_type") else None


def read_adapter(folder: Path, family: Family, architecture: str) -> StoredAdapter:
    """Read the adapter in ``folder`` for a model of that architecture.

    Raises ``UserError`` for settings or tensors that change the model in an unsupported way.
    """
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"{folder} holds an {ADAPTER_CONFIG} but no {ADAPTER_WEIGHTS}")
    stored, names = entries(folder / ADAPTER_WEIGHTS, True), _Names(family, architecture)
    loose = {_plain(name): entry for name, entry in stored.items()}
    config, pairs, whole = _config(folder), dict[str, Pair](), dict[str, Entry]()
    scale = _Scale(config)
    for name, entry in loose.items():
        path, _, leaf = name.rpartition(".lora_")
        if leaf == "A.weight" and f"{path}.lora_B.weight" in loose:
            b = loose[f"{path}.lora_B.weight"]
            pairs[names.full(f"{path}.weight", folder)] = Pair(entry, b, scale.of(path, entry, b))
        elif not (leaf == "B.weight" and f"{path}.lora_A.weight" in loose):
            if path or "trainable_tokens" in name or "token_adapter" in name:
                raise UserError(
                    f"{folder / ADAPTER_WEIGHTS}: {name!r} is neither a low-rank matrix of a linear layer "
                    "nor a tensor saved in full; qkv supports no others"
                )
            whole[names.full(name, folder)] = entry
    modules = [str(module) for module in config.items("modules_to_save")]
    full_names = {name for name in whole if any(f".{module}." in f".{name}" for module in modules)}
    transposed = config.flag("fan_in_fan_out", False)
    scale.finish()
    return StoredAdapter(folder, pairs, whole, frozenset(full_names), transposed)


def adapted_values(
    values: Mapping[str, Any], adapter: StoredAdapter, family: Family, architecture: str
) -> dict[str, Any]:
    """Return the base model's config values with the changes that the adapter causes.

    It can change the architecture, the number of classes and of token embeddings, and whether the head is tied to the
    embeddings.
    """
    config = {**values, "architectures": [architecture]}
    rows = [row for row in family.architectures[architecture].names if row.ours.startswith("head.output")]
    outputs = [fill_indices(name, {"leaf": "weight"}) for row in rows for name in row.published]
    sizes = {adapter.whole[name].shape[0] for name in outputs if name in adapter.whole}
    if len(sizes) == 1 and not architecture.endswith(_TASKS["QUESTION_ANS"]):
        count = sizes.pop()
        if len(config.get("id2label") or ()) != count:
            config = {**config, "num_labels": count, "id2label": None, "label2id": None, "problem_type": None}
    table, head = _table(family), _head(family, architecture)
    if table in adapter.whole and adapter.whole[table].shape[:1] != (values.get("vocab_size"),):
        config["vocab_size"] = adapter.whole[table].shape[0]
    if head is not None and head != table and {table, head} & adapter.modules:
        config["tie_word_embeddings"] = False
    return config


def adapted_tensors(
    base: Mapping[str, Stored], adapter: StoredAdapter, family: Family, architectures: tuple[str, str]
) -> dict[str, Stored]:
    """Return the tensors of the base model with the adapter applied.

    ``architectures``: of the base model and of the adapted model; head tensors that the adapted model lacks are
    omitted. Raises ``UserError`` if the adapter belongs to another model.
    """
    tensors, before, after = named_as_now(family, base), *architectures
    bare = not any(name.startswith(family.prefix) for name in tensors)
    if before != after:
        old, new = _Names(family, before, head_only=True), _Names(family, after)
        tensors = {name: tensor for name, tensor in tensors.items() if new.knows(name) or not old.knows(name)}
    table, head = _table(family), _head(family, after)
    for name, other in ((table, head), (head, table)):
        here = name and _here(name, family, bare)
        if here and name in adapter.modules and other is not None and other not in adapter.modules:
            there = _here(other, family, bare)
            tensors.setdefault(there, tensors.get(here) or tensors[there])
    for name, entry in adapter.whole.items():
        tensors[_here(name, family, bare)] = entry
    for name, pair in adapter.pairs.items():
        here = _here(name, family, bare)
        if here not in tensors:
            raise UserError(
                f"the adapter in {adapter.folder} changes {name!r}, which its base model does not have; "
                f"{nearest(name, tensors)}"
            )
        tensors[here] = Merged(tensors[here], pair, _is_transposed(tensors[here], pair, adapter, name))
    return tensors


def _is_transposed(base: Stored, pair: Pair, adapter: StoredAdapter, name: str) -> bool:
    """Return whether the matrix is stored as (inputs, outputs). Raises ``UserError`` if neither order fits."""
    shape = (pair.b.shape[0], pair.a.shape[1])
    if base.shape not in (shape, shape[::-1]):
        raise UserError(
            f"the adapter in {adapter.folder} changes {name!r} with the shape {list(shape)}, "
            f"but in its base model it has {list(base.shape)}"
        )
    return adapter.transposed if shape == shape[::-1] else base.shape != shape


def _here(name: str, family: Family, bare: bool) -> str:
    """Return the name under which a file stores the tensor ``name``.

    ``bare``: True if names in the file lack the prefix of the body.
    """
    return name.removeprefix(family.prefix) if bare else name


def _table(family: Family) -> str:
    """Return the published name of the token embeddings."""
    return next(row.published[0] for row in family.names if row.ours == "frontend.table")


def _head(family: Family, architecture: str) -> str | None:
    """Return the published name of the matrix of a language-model head; None for other heads."""
    rows = family.architectures[architecture].names
    return next((row.published[0] for row in rows if row.ours == "head.weight"), None)


class _Names:
    """Published names of the tensors of an architecture."""

    def __init__(self, family: Family, architecture: str, head_only: bool = False):
        entry = family.architectures[architecture]
        rows = entry.names if head_only else family.rows(architecture)
        theirs = [name for row in rows for name in row.published]
        if head_only:
            theirs += [*entry.ignored, *entry.kept]
        self.family, self.patterns = family, [re.compile(expression(name)) for name in theirs]

    def knows(self, name: str) -> bool:
        """True if ``name`` is a tensor of the architecture, with or without the prefix of the body."""
        return any(pattern.fullmatch(each) for each in (name, self.family.prefix + name) for pattern in self.patterns)

    def full(self, name: str, folder: Path) -> str:
        """Return ``name`` with the prefix of the body. Raises ``UserError`` if the architecture has no such tensor."""
        for each in (name, self.family.prefix + name):
            if any(pattern.fullmatch(each) for pattern in self.patterns):
                return each
        raise UserError(
            f"{folder / ADAPTER_WEIGHTS} changes {name!r}, which models of the family {self.family.name} do not have"
        )


def _plain(name: str) -> str:
    """Return a tensor name of the adapted model without the parts that PEFT's wrappers add."""
    path = name.removeprefix(_PREFIX).replace(".base_layer.", ".").replace(".modules_to_save.", ".")
    return re.sub(r"(\.lora_[AB])\.default\.", r"\1.", path).replace(".default.", ".")


class _Scale:
    """Scale s of low-rank pairs: alpha / R or alpha / √R, where patterns of layer names may set alpha and R."""

    def __init__(self, config: Config):
        self.config = config
        config.fixed("peft_type", "LORA", "the kind of adapter")
        for key, meaning in _MEANINGS.items():
            if config.values.get(key):
                config.fixed(key, None, meaning)
            config.has(key)
        start = config.values.get("init_lora_weights", True)
        if start not in _PLAIN_STARTS:
            config.fixed("init_lora_weights", True, "the weights of the base model at the start")
        self.alpha, self.root = config.number("lora_alpha", 8.0), config.flag("use_rslora", False)
        self.rank = config.integer("r", 8)
        self.alphas, self.ranks = config.table("alpha_pattern").values, config.table("rank_pattern").values

    def of(self, path: str, a: Entry, b: Entry) -> float:
        """Compute the scale of the linear layer ``path`` with the matrices A and B.

        Raises ``UserError`` if the shapes of A and B do not fit.
        """
        rank, alpha = _by_pattern(self.ranks, path, self.rank), _by_pattern(self.alphas, path, self.alpha)
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or a.shape[0] != rank:
            raise UserError(
                f"{self.config.source}: the rank of {path!r} is {rank}, "
                f"but its matrices have the shapes {list(a.shape)} and {list(b.shape)}"
            )
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise UserError(f"{self.config.source}: alpha_pattern holds {alpha!r}, but it should hold numbers")
        return alpha / math.sqrt(rank) if self.root else alpha / rank

    def finish(self) -> None:
        """Refuse unknown settings of the adapter that are not switched off."""
        off = [key for key, value in self.config.values.items() if not value]
        self.config.finish((*_DESCRIPTIVE, "init_lora_weights", "task_type", *off))


_MEANINGS = {
    "use_dora": "the update: DoRA scales it by a learned magnitude",
    "lora_bias": "the update, which then has a bias",
    "layer_replication": "the number of layers",
    "target_parameters": "parameters that are not linear maps",
    "trainable_token_indices": "single token embeddings",
    "alora_invocation_tokens": "the positions that the adapter applies to",
    "use_qalora": "the update: its input is pooled",
    "arrow_config": "the choice of the adapter, by token",
}
"""Keys that must be switched off -> what they would change."""


def _by_pattern(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    """Return the value of the first pattern that matches ``path`` or its end; else ``default``.

    Patterns are regular expressions, as in PEFT.
    """
    for pattern, value in patterns.items():
        try:
            if path == pattern or path.endswith(f".{pattern}") or re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error:
            raise UserError(f"{pattern!r} in {ADAPTER_CONFIG} is not a regular expression") from None
    return default


def _config(folder: Path) -> Config:
    return Config(read_json(folder / ADAPTER_CONFIG), str(folder / ADAPTER_CONFIG))
