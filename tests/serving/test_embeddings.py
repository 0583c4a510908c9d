"""Vectors through the official client are those of ``qkv.embed``."""

from __future__ import annotations

import numpy as np
import pytest
from openai import BadRequestError
from tests.serving.conftest import Running

from qkv.runs.embed import embed
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
        ({"input": [[1, 2]]}, "ids are not read here"),
        ({"input": []}, "1 to 2,048 texts"),
        ({"input": "a", "dimensions": 8}, "dimensions: 8 given, and this server cannot honour it; allowed: null"),
    ],
)
def test_one_sentence_for_what_cannot_be_embedded(server: Running, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        server.client().embeddings.create(model="rope", **given)  # type: ignore[arg-type]
