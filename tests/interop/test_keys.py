"""Config keys that a family follows, ignores or has defaults for: the transformers library's numbers, or a refusal."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.interop.battery import Pair, answered, every_case, our_answer, rows_of, their_answer
from tests.interop.cases.case import Case
from tests.interop.pool import POOL
from transformers import CONFIG_MAPPING

from qkv.interop.load import load_published
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Family, ignored_keys, read_spec
from qkv.interop.mapping.normal import normal
from qkv.interop.registry import families
from qkv.spec.model import Model
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
FIRST_CASES = {case.config.model_type: case for case in reversed(every_case())}
EXAMPLES = 3
AT_ONCE = 6
"""How many keys are left out of a config together."""
ALWAYS = ({"partial_rotary_factor": 0.5}, {"slow_but_exact": True, "pretraining_tp": 2})
"""Tried with every family that knows the keys."""
TYPES = [(family, kind) for family in families() for kind in family.model_types if kind in CONFIG_MAPPING]
"""Model types with a class in the library; others have theirs in the folders of published models."""


def read(family: Family, architecture: str, values: dict[str, Any]) -> Model | str:
    try:
        return normal(read_spec(family, architecture, Config({**values, "architectures": [architecture]})))
    except UserError as error:
        return str(error)


def written(config: Any) -> dict[str, Any]:
    """All keys of a config of the library's, as its JSON has them."""
    return json.loads(config.to_json_string(use_diff=False))


def their_config(kind: Any, values: dict[str, Any]) -> Any:
    """The library's config of the values of a config.json, whose form of numbers such as infinity it reads in files."""
    with NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(values))
        file.flush()
        return kind.from_dict(kind._dict_from_json_file(file.name))


@pytest.mark.parametrize(("family", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_a_missing_key_means_what_the_published_class_means(family: Family, kind: str) -> None:
    """Without any key, and without each of them, a few at a time."""
    made = CONFIG_MAPPING[kind]
    for name, architecture in family.architectures.items():
        said = {"model_type": kind, **family.typical, **architecture.typical}
        whole, bare = read(family, name, written(made(**said))), read(family, name, said)
        assert bare == whole or isinstance(whole, str), name
    name, architecture = next(iter(family.architectures.items()))
    full = written(made(**family.typical, **architecture.typical))
    keys = sorted(full.keys() - {"model_type", "architectures"})
    count = math.ceil(len(keys) / AT_ONCE)
    compared = (compared_without((family, name), made, full, keys[first::count]) for first in range(count))
    assert sum(compared) > 10


def compared_without(ours: tuple[Family, str], made: Any, full: dict[str, Any], keys: Sequence[str]) -> int:
    """Compare both libraries without these keys; return how many were compared.

    Where either refuses the config, each half of the keys is left out alone.
    """
    given = {other: value for other, value in full.items() if other not in keys}
    spec, theirs = read(*ours, given), None
    with contextlib.suppress(ValueError, TypeError, KeyError):  # what that library cannot make has no meaning
        theirs = written(their_config(made, given))
    if theirs is not None and not isinstance(spec, str):
        assert spec == read(*ours, theirs), keys
        return len(keys)
    if len(keys) == 1:
        return int(theirs is not None)
    half = len(keys) // 2
    return sum(compared_without(ours, made, full, part) for part in (keys[:half], keys[half:]))


def keys_of(case: Case) -> list[tuple[str, Any]]:
    """Keys of the pool, most of which the published code of a family does not know, and names for other ones."""
    found = [(key, value) for key, values in POOL.items() for value in values]
    values = raw(case)
    return found + [(key, values[name]) for key, name in case.config.attribute_map.items() if name in values]


def raw(case: Case) -> dict[str, Any]:
    return {**json.loads(case.config.to_json_string()), "architectures": [case.model.__name__]}


def usual(family: Family, kind: str) -> tuple[str, dict[str, Any]]:
    """(first architecture of a family, all keys of its published config class as they are for a usual model)."""
    name, architecture = next(iter(family.architectures.items()))
    more = {"axial_pos_embds_dim": [64, 192]} if kind == "reformer" else {}
    return name, written(CONFIG_MAPPING[kind](**{**family.typical, **architecture.typical, **more}))


METADATA = {
    "unsloth_version": "2025.3.1",
    "is_llama_config": True,
    "rope_interleaved": False,
    "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"fp16": 1.0}},
    "model_max_length": 10**30,
    "max_sequence_length": 2048,
    "_attn_implementation_autoset": True,
    "tokenizer_class": "PreTrainedTokenizerFast",
    "training_notes": [float("inf"), {"best": float("nan")}],
    "finetuned_by": "somebody",
}
"""Keys of published configs that no code of a family reads, numbers without end among their values."""


@pytest.mark.parametrize(("family", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_keys_that_no_code_reads_are_left_unread_and_listed(family: Family, kind: str) -> None:
    name, plain = usual(family, kind)
    config = Config({**plain, **METADATA, "architectures": [name]})
    assert normal(read_spec(family, name, config)) == read(family, name, plain)
    listed = dict(ignored_keys(family, config))
    assert METADATA.keys() <= listed.keys()
    assert listed["finetuned_by"] == f"not read by the published code of {family.name}"


@pytest.mark.parametrize(("family", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_a_misspelt_key_is_refused_by_its_name(family: Family, kind: str) -> None:
    """Every key whose value is another than the default, with two letters exchanged."""
    name, plain = usual(family, kind)
    asked = Config({**plain, "architectures": [name]})
    whole = normal(read_spec(family, name, asked))
    refused = 0
    for key in asked.asked & plain.keys() - {"model_type", "architectures"}:
        place = len(key) // 2
        wrong = key[:place] + key[place + 1] + key[place] + key[place + 2 :]
        if plain[key] is None or wrong == key:
            continue
        given = {wrong if other == key else other: value for other, value in plain.items()}
        found = read(family, name, given)
        assert isinstance(found, str) or found == whole, key
        refused += repr(wrong) in str(found)
    tables = "vision_config", "text_config", "encoder", "encoder_config"
    nested = any(isinstance(plain.get(key), dict) for key in tables)
    assert refused > 4 or nested  # then the config of a tower or of a stack has the keys


def test_a_key_like_one_that_is_given_too_is_no_mistake() -> None:
    family = next(family for family, kind in TYPES if kind == "llama")
    values = {"model_type": "llama", **family.typical, "rms_norm_eps": 1e-5, "rms_norm_epss": 1.0}
    with pytest.warns(UserWarning, match="'rms_norm_epss' is not read; 'rms_norm_eps' is"):
        assert isinstance(read(family, "LlamaForCausalLM", values), Model)
    del values["rms_norm_eps"]
    assert "did you mean 'rms_norm_eps'?" in str(read(family, "LlamaForCausalLM", values))


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_keys_that_every_library_reads_are_refused_by_their_names(key: str) -> None:
    family = next(family for family, kind in TYPES if kind == "llama")
    assert f"{key} is set" in str(read(family, "LlamaForCausalLM", {"model_type": "llama", key: {"bits": 4}}))


@pytest.mark.parametrize("given", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}], ids=str)
def test_scales_of_gpt2_are_refused_for_gpt(given: dict[str, Any]) -> None:
    """The published class of GPT does not read them."""
    family = next(family for family, kind in TYPES if kind == "openai-gpt")
    (key,) = given
    assert f"{key} is" in str(read(family, "OpenAIGPTLMHeadModel", {"model_type": "openai-gpt", **given}))


@pytest.mark.parametrize(("family", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_every_key_of_the_published_class_is_read_or_has_a_reason(family: Family, kind: str) -> None:
    names = {field.name for field in fields(CONFIG_MAPPING[kind])} | CONFIG_MAPPING[kind].attribute_map.keys()
    known = {*COMMON, *family.ignored_config, *family.synonyms, "_out_features", "_out_indices"}
    _, values = usual(family, kind)
    for name in family.architectures:
        config = Config({**values, "architectures": [name]})
        with contextlib.suppress(UserError):
            read_spec(family, name, config)
        known |= config.asked
    assert not names - known


@pytest.mark.parametrize("kind", FIRST_CASES)
def test_whatever_key_is_added_numbers_are_equal_or_it_is_refused(kind: str, tmp_path: Path) -> None:
    case = FIRST_CASES[kind]
    pool = keys_of(case)
    drawn = st.lists(st.sampled_from(pool), min_size=1, max_size=3).map(dict)
    tried = [{}, *(keys for keys in ALWAYS if all(item in pool for item in keys.items()))][:2]
    compared = []

    @settings(max_examples=EXAMPLES)
    @given(added=drawn)
    def holds(added: dict[str, Any]) -> None:
        found = both(case, {**raw(case), **added}, tmp_path)
        if found is not None:
            ours, theirs = found
            compared.append(added)
            assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-3, added

    for keys in tried:
        holds = example(added=keys)(holds)
    holds()
    assert compared


def both(case: Case, values: dict[str, Any], folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Answers of both libraries under that config.json, with the same random weights; None where either refuses it."""
    generator = torch.Generator().manual_seed(1)
    try:
        config = their_config(type(case.config), values)
        config._attn_implementation = (
            "sdpa" if config.model_type == "falcon" else case.attention
        )  # eager counts Falcon's ALiBi twice
        theirs = case.model(config).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                if parameter.requires_grad:  # others, such as sinusoids, are computed from the config
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        theirs.tie_weights()
        theirs.save_pretrained(folder)
    except Exception:  # any: there is nothing to compare with
        return None
    (folder / "config.json").write_text(json.dumps(values))
    try:
        published = load_published(folder)
    except UserError:
        return None
    pair = Pair(case, theirs, folder, published, *rows_of(case, published, generator))
    with torch.no_grad():
        try:
            answer = their_answer(pair)
        except Exception:  # any: that library does not notice before it computes
            return None
        return answered(pair, our_answer(pair)), answered(pair, answer)
