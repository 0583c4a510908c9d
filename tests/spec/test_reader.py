"""YAML 1.2 scalars, line numbers, and one sentence for every file that cannot be read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.spec.errors import SpecError
from qkv.spec.files.reader import MAX_DEPTH, read_json, read_yaml, scalar

SCALARS: list[tuple[str, Any]] = [
    ("1e-3", 0.001),
    ("3e-4", 0.0003),
    ("1E5", 100000.0),
    (".5", 0.5),
    ("5.", 5.0),
    ("-1.5e+3", -1500.0),
    ("0x1F", 31),
    ("0o17", 15),
    ("017", 17),
    ("-3", -3),
    ("+3", 3),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("off", "off"),
    ("1_000", "1_000"),
    ("12:30", "12:30"),
    ("2024-01-01", "2024-01-01"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("none", "none"),
    ("causal & window(512, sinks=4)", "causal & window(512, sinks=4)"),
    ("e5", "e5"),
    (".", "."),
    ("-", "-"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS, ids=[text for text, _ in SCALARS])
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


FINITE = [(text, value) for text, value in SCALARS if text != "-" and value not in (math.inf, -math.inf)]


@pytest.mark.parametrize(("text", "value"), FINITE, ids=[text for text, _ in FINITE])
def test_a_file_and_a_scalar_are_read_alike(text: str, value: Any) -> None:
    assert read_yaml(f"key: {text}\n")[0] == {"key": value}
    assert read_yaml(f"key: '{text}'\n")[0] == {"key": text}


def test_nan_is_a_number() -> None:
    assert math.isnan(scalar(".nan"))


def test_a_number_too_long_for_python_is_not_finite() -> None:
    assert scalar("1" * 5000) == math.inf


def test_every_path_has_its_line() -> None:
    _, lines = read_yaml("a: 1\nb:\n  - x\n  - c: 2\n    d: [3,\n      4]\n")
    assert lines[("a",)] == 1
    assert lines[("b", 0)] == 3
    assert lines[("b", 1, "d")] == 5
    assert lines[("b", 1, "d", 1)] == 6


def test_json_has_lines_too_and_may_be_indented_by_tabs() -> None:
    data, lines = read_json('{\n\t"a": 1,\n\t"b": {"c": "\\t\\ud83d\\ude00"}\n}')
    assert data == {"a": 1, "b": {"c": "\t\N{GRINNING FACE}"}}
    assert lines[("b", "c")] == 3


def test_an_alias_is_a_copy() -> None:
    data, _ = read_yaml("a: &x {k: [1]}\nb: *x\n")
    data["a"]["k"].append(2)
    assert data["b"] == {"k": [1]}


@pytest.mark.parametrize("text", ["", "# a comment\n", "---\n", "~\n"])
def test_an_empty_document_is_none(text: str) -> None:
    assert read_yaml(text)[0] is None


REFUSED = {
    "a tab before a key": (
        "a: 1\nb:\n\tc: 2\n",
        "f:3: there is a tab here, but YAML allows only spaces; replace each tab by spaces",
    ),
    "a tab after a colon": ("a:\t1\nb:\tc: 1\n", "f:1: there is a tab here"),
    "a key twice": ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "f:5: the key 'c' is also set in line 3; remove one of them"),
    "a tag that builds an object": (
        "a: !!python/object/apply:os.system [ls]\n",
        "f:1: the tag '!!python/object/apply:os.system' is not allowed",
    ),
    "a tag on a key": ("!!python/name:os.system k: 1\n", "is not allowed in plain data; remove it"),
    "a private tag": ("a: !lr 3\n", "f:1: the tag '!lr' is not allowed"),
    "an unknown alias": ("a: *b\n", "f:1: '*b' refers to no anchor above; text that begins with '*' needs quotes"),
    "an alias inside itself": ("a: &a [*a]\n", "f:1: '*a' refers to no anchor above"),
    "two documents": ("a: 1\n---\nb: 2\n", "f:2: a second document begins here"),
    "a list as key": ("? [a]\n: 1\n", "f:1: a key is a word"),
    "a merge key": ("a: &x {k: 1}\nb:\n  <<: *x\n", "f:3: the merge key '<<' is not part of YAML 1.2"),
    "a list left open": ("a: 1\nb: [1\n", "f:3: this is not YAML: while parsing a flow sequence that begins in line 2"),
    "a short form cut at a comma": ("a: [gru, attention(4, bias=true)]\n", "f:1: 'attention(4' ends at a comma"),
    "a character that no text has": ("a: 1\nb: \x00\n", "f:2: the character '\\x00' is not allowed in YAML"),
    "two colons": ("a: b: c\n", "f:1: this is not YAML: mapping values are not allowed here"),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_has_its_line_and_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_yaml(text, "f")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1,}', "f:1: this is not JSON"),
        ('{"a": 1,\n "a": 2}', "f:2: the key 'a' is also set in line 1"),
        ('{"a": 1' + "0" * 5000 + "}", "a number is too long"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["a comma too many", "a key twice", "a long number", "deep"],
)
def test_json_that_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_json(text, "f")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_nesting_is_bounded(opening: str) -> None:
    closing = {"[": "]", "{a: ": "}"}[opening]
    read_yaml(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    with pytest.raises(SpecError, match="nested deeper"):
        read_yaml(opening * 200_000)


def test_aliases_of_aliases_are_counted_and_not_built() -> None:
    rows = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    rows += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="more than 100,000 values"):  # of 10¹² that would be built
        read_yaml("\n".join(rows))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - (1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_json_is_read_as_json_reads_it(data: Any) -> None:
    if isinstance(data, dict) and "<<" in data:
        return
    assert read_json(json.dumps(data))[0] == data
    assert read_json(json.dumps(data, ensure_ascii=False, indent=1))[0] == data


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    error, lines = None, {}
    try:
        _, lines = read_yaml(text)
    except SpecError as caught:
        error = caught
    assert (error is None) or str(error)
    assert all(1 <= line <= len(text) + 1 for line in lines.values())
