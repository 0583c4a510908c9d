"""Config keys that a family follows, ignores or has defaults for: the transformers library's numbers, or a refusal."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
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
from qkv.interop.mapping.family import Family, read_spec
from qkv.interop.normal import normal
from qkv.interop.registry import FAMILIES
from qkv.spec.errors import UserError
from qkv.spec.model import Model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
FIRST_CASES = {case.config.model_type: case for case in reversed(every_case())}
EXAMPLES = 8
ALWAYS = ({"partial_rotary_factor": 0.5}, {"slow_but_exact": True, "pretraining_tp": 2})
"""Tried with every family that knows the keys."""
TYPES = [(family, kind) for family in FAMILIES for kind in family.model_types]


def read(family: Family, architecture: str, values: dict[str, Any]) -> Model | str:
    try:
        return normal(read_spec(family, architecture, Config({**values, "architectures": [architecture]})))
    except UserError as error:
        return str(error)


def written(config: Any) -> dict[str, Any]:
    """All keys of a config of the library's, as its JSON has them."""
    return json.loads(config.to_json_string(use_diff=False))


@pytest.mark.parametrize(("family", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_a_missing_key_means_what_the_published_class_means(family: Family, kind: str) -> None:
    """Without any key, and without each of them in turn."""
    made = CONFIG_MAPPING[kind]
    for name, architecture in family.architectures.items():
        said = {"model_type": kind, **family.typical, **architecture.typical}
        whole, bare = read(family, name, written(made(**said))), read(family, name, said)
        assert bare == whole or isinstance(whole, str), name
    name, architecture = next(iter(family.architectures.items()))
    full = written(made(**family.typical, **architecture.typical))
    compared = 0
    for key in full.keys() - {"model_type", "architectures"}:
        given = {other: value for other, value in full.items() if other != key}
        with contextlib.suppress(ValueError, TypeError, KeyError):  # what that library cannot make has no meaning
            theirs = written(made.from_dict(dict(given)))
            ours = read(family, name, given)
            assert isinstance(ours, str) or ours == read(family, name, theirs), key
            compared += 1
    assert compared > 10


def keys_of(case: Case) -> list[tuple[str, Any]]:
    """Of the pool what the family reads or ignores; any other key is refused."""
    family = next(family for family, kind in TYPES if kind == case.config.model_type)
    config = Config({**raw(case), "num_labels": 2})
    with contextlib.suppress(UserError):
        read_spec(family, case.model.__name__, config)
    known = {*config.asked, *family.ignored_config, "pretraining_tp", "use_cache", "torch_dtype"}
    return [(key, value) for key, values in POOL.items() if key in known for value in values]


def raw(case: Case) -> dict[str, Any]:
    return {**json.loads(case.config.to_json_string()), "architectures": [case.model.__name__]}


@pytest.mark.parametrize("kind", FIRST_CASES)
def test_whatever_key_is_added_numbers_are_equal_or_it_is_refused(kind: str, tmp_path: Path) -> None:
    case = FIRST_CASES[kind]
    pool = keys_of(case)
    drawn = st.lists(st.sampled_from(pool), min_size=1, max_size=3).map(dict)
    first = next((keys for keys in ALWAYS if all(item in pool for item in keys.items())), {})
    compared = []

    @settings(max_examples=EXAMPLES)
    @given(added=drawn)
    @example(added=first)
    @example(added={})
    def holds(added: dict[str, Any]) -> None:
        found = both(case, {**raw(case), **added}, tmp_path)
        if found is not None:
            ours, theirs = found
            compared.append(added)
            assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-3, added

    holds()
    assert compared


def both(case: Case, values: dict[str, Any], folder: Path) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Answers of both libraries under that config.json, with the same random weights; None where either refuses it."""
    generator = torch.Generator().manual_seed(1)
    try:
        config = type(case.config).from_dict(json.loads(json.dumps(values)))
        config._attn_implementation = (
            "sdpa" if config.model_type == "falcon" else case.attention
        )  # eager counts Falcon's ALiBi twice
        theirs = case.model(config).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
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
