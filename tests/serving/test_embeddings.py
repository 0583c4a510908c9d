"""Vectors through the official client are those of ``qkv.embed``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from openai import BadRequestError
from tests.serving.conftest import Running, serving
from tests.serving.models import text_run

from qkv.runs.inference.embed import embed
from qkv.runs.run import Run

TEXTS = ["the quick brown", "fox", "a lazy dog"]


@pytest.mark.parametrize("name", ["rope", "gru", "translation"])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_are_those_of_the_run(server: Running, runs: dict[str, Run], name: str, form: str) -> None:
    many = TEXTS * 8  # more than are computed at once
    made = server.client().embeddings.create(model=name, input=many, encoding_format=form)  # type: ignore[call-overload]
    vectors = [each.embedding for each in made.data]
    if form == "base64":
        import base64

        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    np.testing.assert_allclose(np.asarray(vectors), embed(runs[name], many), rtol=0, atol=1e-5)
    assert [each.index for each in made.data] == list(range(len(many)))
    assert made.usage.prompt_tokens == sum(runs[name].vocabulary.tokenizer.encode_framed(text).whole for text in many)


def test_one_text_is_read(server: Running, runs: dict[str, Run]) -> None:
    made = server.client().embeddings.create(model="rope", input="fox")
    np.testing.assert_allclose(np.asarray(made.data[0].embedding), embed(runs["rope"], ["fox"])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"input": "fox " * 40}, "text 1 has 159 tokens, and the model reads 64"),
        ({"input": ["fox"] * 20 + [" "]}, "text 21 has no tokens"),
        ({"input": [[1, 2]] * 20 + [[9999]]}, "text 21 has the token 9999, which is outside the vocabulary"),
        ({"input": [1] * 70}, "text 1 has 70 tokens, and the model reads 64"),
        ({"input": [[1, "a"]]}, "allowed: a text or a list of ids"),
        ({"input": []}, "1 to 2,048 of these"),
        ({"input": "a", "dimensions": 8}, "dimensions: 8 given; vectors of this model cannot be truncated"),
    ],
)
def test_one_sentence_for_what_cannot_be_embedded(server: Running, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        server.client().embeddings.create(model="rope", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rope", "translation"])
def test_ids_are_read_as_the_text_that_they_are_of(server: Running, runs: dict[str, Run], name: str) -> None:
    client, tokenizer = server.client(), runs[name].vocabulary.tokenizer
    ids = [tokenizer.encode_framed(text).ids for text in TEXTS]
    expected = embed(runs[name], TEXTS)
    made = client.embeddings.create(model=name, input=ids)
    np.testing.assert_allclose([each.embedding for each in made.data], expected, rtol=0, atol=1e-5)
    assert made.usage.prompt_tokens == sum(map(len, ids))
    (one,) = client.embeddings.create(model=name, input=ids[0]).data
    np.testing.assert_allclose(one.embedding, expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "asked", "sentence"),
    [
        ({"matryoshka_dimensions": [4, 8]}, 8, None),
        ({"is_matryoshka": True}, 5, None),
        ({"is_matryoshka": True}, 17, "dimensions: 17 given, but the vectors have 16"),
        ({"matryoshka_dimensions": [4, 8]}, 5, "dimensions: 5 given; allowed: 4, 8"),
        ({"is_matryoshka": False}, 8, "vectors of this model cannot be truncated"),
    ],
)
def test_vectors_are_cut_where_the_folder_allows_it(
    tmp_path: Path, config: dict[str, object], asked: int, sentence: str | None
) -> None:
    run = text_run(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with serving({"cut": run}) as server:
        if sentence is not None:
            with pytest.raises(BadRequestError, match=sentence):
                server.client().embeddings.create(model="cut", input=TEXTS, dimensions=asked)
            return
        made = server.client().embeddings.create(model="cut", input=TEXTS, dimensions=asked)
    whole = embed(run, TEXTS)[:, :asked].astype(float)
    expected = whole / np.sqrt((whole**2).sum(1, keepdims=True))
    np.testing.assert_allclose([each.embedding for each in made.data], expected, rtol=0, atol=1e-5)
