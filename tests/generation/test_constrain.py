"""Constrained text: whatever random weights write matches, as ``re`` and ``jsonschema`` see it."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits.constrain import Constraint, constraint_of
from qkv.generation.text import generate_text, generate_texts
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation, Speculation
from qkv.spec.model import Model
from qkv.spec.tokenizers import BPE, Bytes, Characters, Code, Unigram, WordList, WordPiece, Words
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEXT = (
    'the cat sat on the mat: {"a": [1, 23.5, true], "größe": null}\n'
    + "".join(map(chr, range(32, 127)))
    + " true false null 0 1 2 3 4 5 6 7 8 9 猫 -1e5\n"
) * 3
SCHEMES = {
    "characters": Characters(),
    "bytes": Bytes(),
    "words": Words(vocab_size=300),
    "bpe": BPE(vocab_size=300),
    "code": Code(vocab_size=300),
    "unigram": Unigram(vocab_size=300),
}
DRAWN = Generation(max_new_tokens=400, temperature=1.3, seed=5)


@cache
def system(scheme: str, specials: bool = False) -> tuple[Transformer, Tokenizer]:
    tokenizer = train(SCHEMES[scheme], [TEXT])
    tokenizer = tokenizer.with_specials(["bos", "eos"]) if specials else tokenizer
    frontend = {"kind": "text", "vocab_size": tokenizer.vocab_size + 3, "positions": "none"}
    spec = {"width": 16, "init_std": 0.6, "frontend": frontend, "blocks": [{"branches": ["gru"]}]}
    return build(Model.parse(spec), seed=1).eval(), tokenizer


REGEXES = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(cat|mat|the)( (cat|mat|the)){0,3}",
    r"(the )?(cat)?(mat)?true",
    r"[^0-9\n]{3,9}!",
    r"(1|2 ?){0,9}0",
]


@pytest.mark.parametrize("regex", REGEXES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_random_weights_write_matches_the_expression(scheme: str, regex: str) -> None:
    m, tokenizer = system(scheme)
    constraint = Constraint(tokenizer, regex=regex)
    found = set[str]()
    for generation in (DRAWN, DRAWN.changed(top_k=2, top_p=0.9, repetition_penalty=1.2), DRAWN.changed(temperature=0)):
        texts = generate_texts(m, tokenizer, ["the", "cat sat", "1"], generation, constraint=constraint)
        look_up = Speculator(Speculation(num_tokens=4, ngram=1, adaptive=False))
        options: dict[str, Any] = {"speculation": look_up, "constraint": constraint}
        assert generate_texts(m, tokenizer, ["the", "cat sat", "1"], generation, **options) == texts
        for text in texts:
            assert re.fullmatch(regex, text), text
            found.add(text)
    assert len(found) > 1


SCALARS = st.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 1, None, "the cat"]},
        {"type": "integer", "minimum": 0, "maximum": 999},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
        {"const": {"a": [1, 2]}},
    ]
)


def wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "cat", "mat", "size"])
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)
    )
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda properties: (
            st.lists(st.sampled_from(sorted(properties)), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": False,
                }
            )
            if properties
            else st.just({"type": "object", "additionalProperties": False})
        )
    )
    return st.one_of(arrays, objects, st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several}))


@settings(max_examples=8, deadline=None)
@given(st.recursive(SCALARS, wider, max_leaves=5), st.integers(0, 10**6))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_random_weights_write_is_json_of_the_schema(scheme: str, schema: dict[str, Any], seed: int) -> None:
    m, tokenizer = system(scheme)
    constraint = Constraint(tokenizer, json_schema=json.dumps(schema))
    for text in generate_texts(m, tokenizer, ["the", "{"], DRAWN.changed(seed=seed), constraint=constraint):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("scheme", ["characters", "bpe"])
def test_special_tokens_end_a_text_and_are_never_part_of_it(scheme: str) -> None:
    m, tokenizer = system(scheme, specials=True)
    constraint = constraint_of(tokenizer, "[a-z]{2,60}", None)
    found = generate_texts(m, tokenizer, ["the"] * 20, DRAWN.changed(temperature=2.0), constraint=constraint)
    assert all(re.fullmatch("[a-z]{2,60}", text) for text in found)
    assert len({len(text) for text in found}) > 1, "a text ends where the model ends it"


def test_tokens_that_were_allowed_keep_their_probabilities() -> None:
    """The mask comes before the filters: of two allowed tokens the ratio is that of the model."""
    m, tokenizer = system("bytes")
    with torch.no_grad():
        logits = m(torch.tensor([tokenizer.encode("the")]))[0][0, -1]
    a, b = (float(logits[ord(c)].double().exp()) for c in "xq")
    found = generate_texts(
        m, tokenizer, ["the"] * 2000, Generation(max_new_tokens=3, seed=0), constraint=Constraint(tokenizer, "x|q")
    )
    assert found.count("x") / 2000 == pytest.approx(a / (a + b), abs=0.05)
    assert found.count("x") + found.count("q") == 2000


@pytest.mark.parametrize("kind", [WordPiece(vocab_size=300), WordList(vocab_size=50)])
def test_tokenizers_whose_tokens_have_no_text_of_their_own_are_refused(kind: Any) -> None:
    with pytest.raises(UserError, match="constrained text needs a tokenizer of bytes, characters, words or"):
        Constraint(train(kind, [TEXT]), "a+")


def test_a_tokenizer_that_cannot_write_a_character_is_refused() -> None:
    m, tokenizer = system("characters")
    for regex in ("é+", "ab?é"):
        with pytest.raises(
            UserError, match="no token of the tokenizer can continue the text as the regular expression demands"
        ):
            generate_text(m, tokenizer, "the", DRAWN, constraint=Constraint(tokenizer, regex))


def test_a_text_that_is_not_complete_is_refused() -> None:
    m, tokenizer = system("bytes")
    with pytest.raises(UserError, match=r"after 5 tokens \(max_new_tokens\) the text does not match the JSON schema"):
        generate_text(
            m,
            tokenizer,
            "the",
            DRAWN.changed(max_new_tokens=5),
            constraint=constraint_of(tokenizer, None, {"const": "abcdefgh"}),
        )


DEEP = '{"anyOf":[' * 3000 + "{}" + "]}" * 3000
WIDE = json.dumps(
    {
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(3)},
        "$defs": {
            **{chr(97 + i): {"allOf": [{"anyOf": [{"$ref": f"#/$defs/{chr(98 + i)}"}] * 9}] * 9} for i in range(12)},
            "m": {"type": "string", "pattern": "(a{1,500}){1,500}"},
        },
    }
)


@pytest.mark.parametrize(
    ("regex", "schema", "sentence"),
    [
        (None, None, "either a regular expression or a JSON schema; neither given"),
        ("a", "{}", "either a regular expression or a JSON schema; both given"),
        ("a(", None, "the regular expression cannot be used: .*unclosed group"),
        (r"(a)\1", None, "the regular expression cannot be used: .*backreference"),
        ("a" * (2**20 + 1), None, "the regular expression has 1,048,577 characters; allowed: at most 1,048,576"),
        (None, "{", "the JSON schema is not valid JSON: "),
        (None, "[1]", "the JSON schema is a list; allowed: an object"),
        (None, '{"type": "objec"}', "the JSON schema cannot be used: .*objec"),
        (None, '{"$ref": "http://example.org/a.json"}', "the JSON schema cannot be used: "),
        (None, '{"properties": [1]}', "the JSON schema cannot be used: "),
        (None, DEEP, "the JSON schema (is not valid JSON|cannot be used): "),
        (None, WIDE, "the JSON schema cannot be used: "),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(regex: str | None, schema: str | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        Constraint(system("bytes")[1], regex, schema)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_other_ways_to_decode_are_refused() -> None:
    m, tokenizer = system("bytes")
    constraint = Constraint(tokenizer, "a+")
    with pytest.raises(UserError, match="num_beams is 2, but beam search does not support constraints"):
        generate_text(m, tokenizer, "the", Generation(num_beams=2), constraint=constraint)
    with pytest.raises(UserError, match="stop: 'x' could end a text before the constraint is met"):
        generate_text(m, tokenizer, "the", DRAWN.changed(stop=("x",)), constraint=constraint)
    with pytest.raises(UserError, match="the constraint's tokenizer has 256 tokens, but the model has only "):
        generate_text(system("characters")[0], tokenizer, "the", DRAWN, constraint=constraint)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"pip install 'qkv\[constrain\]'"):
        Constraint(system("bytes")[1], "a")


def test_plain_data_as_a_schema() -> None:
    tokenizer = system("bytes")[1]
    assert constraint_of(tokenizer, None, None) is None
    found = constraint_of(tokenizer, None, {"const": 12})
    assert found is not None
    assert generate_text(*system("bytes"), "the", DRAWN, constraint=found) == "12"
    with pytest.raises(UserError, match="the JSON schema cannot be written as JSON"):
        constraint_of(tokenizer, None, {"const": {1, 2}})
