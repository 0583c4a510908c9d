"""Scores of documents over HTTP are those of ``qkv.rerank``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.serving.conftest import Running

import qkv
from qkv.runs.run import Run

QUERY, DOCUMENTS = "the fox", ["the lazy dog", "a quick brown fox", "over"]


def reranked(server: Running, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, **body}, timeout=60)


@pytest.mark.parametrize("name", ["translation", "rope"])
def test_scores_are_those_of_the_run(server: Running, runs: dict[str, Run], name: str) -> None:
    many = DOCUMENTS * 8  # more than are scored at once
    wanted = {each.index: each.score for each in qkv.rerank(runs[name], QUERY, many)}
    answer = reranked(server, model=name, documents=many).json()
    results = answer["results"]
    assert {each["index"]: each["relevance_score"] for each in results} == pytest.approx(wanted, abs=1e-5)
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert answer["usage"]["total_tokens"] > len(many)


def test_documents_are_objects_and_are_returned(server: Running) -> None:
    given = [{"text": document} for document in DOCUMENTS]
    results = reranked(server, model="translation", documents=given, top_n=2, return_documents=True).json()["results"]
    assert len(results) == 2
    assert all(each["document"] == given[each["index"]] for each in results)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"documents": []}, "1 to 2,048 documents"),
        ({"documents": [1]}, "allowed: a text, or an object with a text"),
        ({"query": " "}, "the query is empty"),
        ({"documents": ["a", " "]}, "document 1 is empty"),
        ({"instruction": "find it"}, "an instruction is given"),
    ],
)
def test_one_sentence_for_what_cannot_be_ordered(server: Running, body: dict[str, Any], sentence: str) -> None:
    answer = reranked(server, model="translation", **body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]
