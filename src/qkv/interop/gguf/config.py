"""Conversion between the ``config.json`` of a family and the metadata of a GGUF file, in both directions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.interop.families.common.activations import INWARD
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family, read_spec
from qkv.interop.mapping.gguf import EXPERTS, GGUFLayout, MetadataKey, Values, size_of
from qkv.interop.mapping.names import fill_indices, indices_of
from qkv.interop.registry import choose, families
from qkv.spec.model import Model
from qkv.system.errors import UserError, nearest, quoted
from qkv.tokenizers.gguf.file import Header, library

ARCHITECTURE = "general.architecture"
FACTORS = "rope_freqs.weight"
OUTPUT, TABLE = "output.weight", "token_embd.weight"
_EXPERT = re.compile(r"\.\{expert\}|\[\{expert\}\]")
"""Index of an expert in the pattern of a published name, which the name of the tensor of all experts lacks."""
_SCALING = ("linear", "yarn")
_YARN = {
    "original_context_length": ("original_max_position_embeddings", int),
    "yarn_beta_fast": ("beta_fast", float),
    "yarn_beta_slow": ("beta_slow", float),
}
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""RoPE scaling of all published Llama 3 models, apart from the factor."""


def metadata_of(layout: GGUFLayout, config: Values) -> dict[str, Any]:
    """Build the metadata, with full keys, of a model whose ``config.json`` has the values ``config``."""
    metadata: dict[str, Any] = {ARCHITECTURE: layout.name, f"{layout.name}.vocab_size": config["vocab_size"]}
    for key in layout.keys:
        value = config.get(key.config)
        if value is not None:
            metadata[f"{layout.name}.{key.name}"] = key.kind(value)
    metadata |= {f"{layout.name}.{name}": derive(config) for name, derive in layout.derived.items()}
    if layout.turned:
        head = config["hidden_size"] // config["num_attention_heads"]
        metadata[f"{layout.name}.rope.dimension_count"] = int(config[layout.turned] * head)
    if layout.windows:
        metadata |= _windows(layout, config)
    return metadata | {f"{layout.name}.rope.scaling.{key}": value for key, value in _scaling(config).items()}


def _windows(layout: GGUFLayout, config: Values) -> dict[str, Any]:
    """Return the metadata for the layers with a sliding window.

    This is the period of the layers with full attention, or a list of one flag per layer.
    """
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    name = f"{layout.name}.attention.sliding_window_pattern"
    if not any(sliding):
        return {name: 1, f"{layout.name}.attention.sliding_window": 0} if layout.name == "gemma3" else {name: 1}
    for period in range(2, len(sliding) + 2):
        if sliding == [(i + 1) % period > 0 for i in range(len(sliding))]:
            return {name: period}
    return {name: sliding}


def _scaling(config: Values) -> dict[str, Any]:
    table = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if table.get("rope_type") not in _SCALING:
        return {}
    keys = {"type": table["rope_type"], "factor": float(table["factor"])}
    return keys | {name: kind(table[key]) for name, (key, kind) in _YARN.items() if key in table}


def factors_of(config: Values) -> np.ndarray | None:
    """Compute the divisors (Dk/2,) of RoPE's frequencies for the RoPE scaling of Llama 3 (Dubey et al. 2024).

    Return None if the config has another scaling. A frequency f with wavelength λ = 2π / f is divided by ``factor`` if
    λ > L / low, by 1 if λ < L / high, and by an interpolated number in between, where L is the original context length.
    """
    table = config.get("rope_scaling") or {}
    if table.get("rope_type") != "llama3":
        return None
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    wavelengths = 2 * math.pi * config.get("rope_theta", 10000.0) ** (np.arange(0, size, 2, dtype=np.float64) / size)
    low, high = table["low_freq_factor"], table["high_freq_factor"]
    smooth = (table["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = smooth.clip(0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / table["factor"] + smooth)).astype(np.float32)


def values_of(header: Header, factors: np.ndarray | None = None, family: Family | None = None) -> dict[str, Any]:
    """Convert the metadata of a GGUF file to ``config.json`` values.

    ``factors``: contents of its tensor of RoPE factors. ``family``: by default the first family with the file's
    architecture. Raises ``UserError``.
    """
    family = family or _family(header)
    layout = layout_of(family)
    values: dict[str, Any] = {}
    for key in layout.keys:
        value = _value(header, layout, key)
        if value is not None and values.setdefault(key.config, value) != value:
            raise UserError(
                f"{header.file}: {layout.name}.{key.name} is {value}, but qkv supports only {values[key.config]} here, "
                f"the value of another key for {key.config}"
            )
    _check_counts(header, layout, values)
    if TABLE not in header.tensors:
        raise UserError(f"{header.file} lacks the tensor {TABLE!r}, the token table")
    values["vocab_size"] = header.tensors[TABLE].shape[0]
    values["tie_word_embeddings"] = OUTPUT not in header.tensors
    values |= {key: tensor in header.tensors for key, tensor in layout.flags.items()}
    if "num_attention_heads" in values and any(key.config == "num_key_value_heads" for key in layout.keys):
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
    values |= _rope(header, layout, values, factors) | _layer_types(header, layout, values)
    values |= {key: value(values) if callable(value) else value for key, value in layout.built_in.items()}
    return {"model_type": family.model_types[0], "architectures": [layout.architecture], **values}


def _check_counts(header: Header, layout: GGUFLayout, values: Values) -> None:
    """Raise ``UserError`` if the file has fewer tensors than layers, or a tensor of fewer experts than it says."""
    layers, experts = size_of(values, layout, "block_count"), size_of(values, layout, EXPERTS)
    if layers > len(header.tensors):
        count = f"{layout.name}.block_count is {layers:,}"
        raise UserError(f"{header.file}: {count}, but the file has only {len(header.tensors):,} tensors")
    stacks = {name: each.shape[0] for name, each in header.tensors.items() if name.endswith("_exps.weight")}
    if layout.experts and not stacks:
        raise UserError(f"{header.file} lacks the tensor 'blk.0.ffn_up_exps.weight', the weights of a layer's experts")
    name = next((name for name, number in stacks.items() if layout.experts and number != experts), None)
    if name is not None:
        weights = f"the tensor {name!r} has weights of {stacks[name]:,} experts"
        raise UserError(f"{header.file}: {layout.name}.{EXPERTS} is {experts:,}, but {weights}")


def layout_of(family: Family) -> GGUFLayout:
    """Return the GGUF layout of a family. Raises ``UserError`` if it has none."""
    if family.gguf is None:
        raise UserError(f"qkv cannot write or read {family.name} as a GGUF file; it supports {known_in_gguf()}")
    return family.gguf


def known_in_gguf() -> str:
    """Return the names of the families that have a GGUF layout, for messages."""
    return ", ".join(family.name for family in families() if family.gguf)


def _family(header: Header) -> Family:
    name = header.values.get(ARCHITECTURE)
    if not isinstance(name, str):
        raise UserError(f"{header.file} lacks the key {ARCHITECTURE!r}")
    experts = bool(header.values.get(f"{name}.{EXPERTS}"))
    layouts = {(each.gguf.name, each.gguf.experts): each for each in reversed(families()) if each.gguf}
    if (name, experts) not in layouts:
        names, kinds = {each for each, _ in layouts}, (" without experts", " with experts")
        here, other = (kinds[experts], f"it supports it{kinds[not experts]}") if name in names else ("", "")
        raise UserError(
            f"{header.file}: the architecture is {quoted(name)}{here}, which qkv does not support; "
            f"{other or nearest(name, names)}"
        )
    return layouts[name, experts]


def _value(header: Header, layout: GGUFLayout, key: MetadataKey) -> Any:
    """Read the value of a metadata key; return None if the key is optional and missing.

    A 32-bit float becomes the shortest decimal number that rounds to it. Raises ``UserError``.
    """
    name = f"{layout.name}.{key.name}"
    value = header.values.get(name)
    if value is None:
        if key.needed:
            raise UserError(f"{header.file} lacks the key {name!r}")
        return None
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UserError(f"{header.file}: {name} differs between layers, but qkv supports only equal values here")
        value = value[0]
    allowed = {int: int, bool: bool, float: (int, float)}[key.kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and key.kind is not bool):
        raise UserError(f"{header.file}: {name} is {quoted(value)}, but it should be of the kind {key.kind.__name__}")
    return shortest(value) if key.kind is float else value


def shortest(value: float) -> float:
    """Return the shortest decimal number that rounds to ``value`` in 32 bits: 1e-05 instead of 9.99999975e-06."""
    return float(str(np.float32(value)))


def _rope(header: Header, layout: GGUFLayout, values: Values, factors: np.ndarray | None) -> dict[str, Any]:
    """Return the config keys of RoPE: rotated fraction of a head, scaling and its factors."""
    if not layout.base:
        return {}
    keys: dict[str, Any] = {}
    if layout.turned:
        turned = _value(header, layout, MetadataKey("rope.dimension_count", layout.turned))
        keys[layout.turned] = turned / (values["hidden_size"] // values["num_attention_heads"])
    kind = header.values.get(f"{layout.name}.rope.scaling.type", "none")
    if kind in _SCALING:
        keys["rope_scaling"] = {"rope_type": kind, **_scaling_table(header, layout, kind)}
    elif kind != "none":
        raise UserError(
            f"{header.file}: {layout.name}.rope.scaling.type is {quoted(kind)}, but qkv supports only "
            f"{', '.join(_SCALING)} here"
        )
    elif factors is not None:
        keys["rope_scaling"] = _llama3(header, {**values, **keys}, factors)
    return keys


def _scaling_table(header: Header, layout: GGUFLayout, kind: str) -> dict[str, Any]:
    rows = _YARN if kind == "yarn" else {}
    keys = [MetadataKey("rope.scaling.factor", "factor", float)]
    keys += [MetadataKey(f"rope.scaling.{name}", ours, type_of, needed=False) for name, (ours, type_of) in rows.items()]
    table = {key.config: _value(header, layout, key) for key in keys}
    return {key: value for key, value in table.items() if value is not None}


def _llama3(header: Header, values: Values, factors: np.ndarray) -> dict[str, Any]:
    """Return the parameters of Llama 3's RoPE scaling that give the stored ``factors``.

    Raises ``UserError`` if no known scaling gives them.
    """
    table = {"rope_type": "llama3", "factor": shortest(factors.max()), **_LLAMA3}
    table |= {key: header.values[f"qkv.{key}"] for key in _LLAMA3 if f"qkv.{key}" in header.values}
    table = {key: shortest(value) if isinstance(value, float) else value for key, value in table.items()}
    again = factors_of({**values, "rope_scaling": table})
    if again is None or again.shape != factors.shape or not np.allclose(again, factors, rtol=1e-4):
        raise UserError(f"{header.file}: the tensor {FACTORS!r} is not the RoPE scaling of a Llama 3 model")
    return table


def own_keys(config: Values) -> dict[str, Any]:
    """Return metadata keys that only qkv reads: RoPE settings that llama.cpp stores only as frequency factors."""
    table = config.get("rope_scaling") or {}
    return {f"qkv.{key}": table[key] for key in _LLAMA3 if table.get("rope_type") == "llama3"}


def _layer_types(header: Header, layout: GGUFLayout, values: Values) -> dict[str, Any]:
    """Return ``layer_types`` for a family in which some layers have a sliding window."""
    if not layout.windows:
        return {}
    layers = range(values["num_hidden_layers"])
    pattern = header.values.get(f"{layout.name}.attention.sliding_window_pattern", layout.windows)
    if layout.name == "gemma3" and not values.get("sliding_window"):
        pattern = 1
    if isinstance(pattern, list):
        sliding = [bool(each) for each in pattern[: len(layers)]]
    else:
        sliding = [pattern == 0 or i % pattern < pattern - 1 for i in layers]
    kinds = ["sliding_attention" if each else "full_attention" for each in sliding]
    return {"layer_types": kinds} | ({} if any(sliding) else {"sliding_window": None})


def check_kept(family: Family, config: Values, header: Header, factors: np.ndarray | None) -> None:
    """Check that the GGUF file keeps every setting of the model with the ``config.json`` values ``config``.

    Raises ``UserError`` if the metadata ``header`` convert back to other values.
    """
    layout = layout_of(family)
    ours, theirs = (_settings(values) for values in (config, values_of(header, factors, family)))
    for key in ours.keys() | theirs.keys():
        if ours.get(key) != theirs.get(key):
            if key in layout.built_in:
                raise UserError(
                    f"a GGUF file of the architecture {layout.name!r} does not store {key}: it always means "
                    f"{quoted(theirs.get(key))}, and this model has {quoted(ours.get(key))}; export it with --format hf"
                    f"{_advice(key, theirs.get(key))}"
                )
            raise UserError(
                f"llama.cpp has no model with {key} {quoted(ours.get(key))} in its architecture {layout.name!r}, "
                f"only with {quoted(theirs.get(key))}; export it with --format hf"
            )


def _advice(key: str, value: Any) -> str:
    """Return advice to train a model with the activation that a GGUF file of this architecture implies, else ""."""
    ours = INWARD.get(value) if key in ("activation_function", "hidden_act", "hidden_activation") else None
    return f", or train a model whose activation is {ours!r}, as this file would mean" if ours else ""


def _settings(values: Values) -> dict[str, Any]:
    """Convert config values to a spec and back, so that they can be compared; training settings are omitted."""
    family, architecture = choose(Config(values))
    spec: Model = read_spec(family, architecture, Config(values, "the metadata"))
    keys = {**(family.config(spec) or {}), **(family.architectures[architecture].config(spec.head) or {})}
    return {key: value for key, value in keys.items() if not _of_training(key)}


def _of_training(key: str) -> bool:
    return key.endswith(("dropout", "pdrop")) or key == "initializer_range"


def names_of(family: Family, values: Values) -> dict[str, str]:
    """Return the name in GGUF of each tensor of the family, by published name, for a model with the config ``values``.

    The matrix of one expert is a slice of a tensor of all, such as ``blk.0.ffn_up_exps.weight[2]``.
    """
    gguf, layout = library(), layout_of(family)
    number = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == layout.name)
    layers, experts = size_of(values, layout, "block_count"), size_of(values, layout, EXPERTS)
    table = gguf.get_tensor_name_map(number, layers)
    names = dict[str, str]()
    for pattern in (name for row in family.rows(layout.architecture) for name in row.published):
        for indices in _places(pattern, layers):
            whole = fill_indices(_EXPERT.sub("", pattern), indices)
            spelled = (whole, whole.removeprefix(family.prefix))
            stored = (table.get_name(each, try_suffixes=(".weight", ".bias")) for each in spelled)
            target = next((each for each in stored if each is not None), None)
            if target is not None and "expert" in indices_of(pattern):
                names |= {fill_indices(pattern, {**indices, "expert": i}): f"{target}[{i}]" for i in range(experts)}
            elif target is not None:
                names[whole] = target
    return names


def _places(pattern: str, layers: int) -> Iterator[dict[str, str | int]]:
    """Yield the indices, other than that of an expert, that a pattern of a name table has in a model of ``layers``."""
    for layer in range(layers) if "layer" in indices_of(pattern) else (0,):
        for leaf in ("weight", "bias") if "*" in pattern else ("",):
            yield {"layer": layer, "leaf": leaf}
