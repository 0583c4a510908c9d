"""Nearest texts: equal to loops in float64 on word vectors set by hand, and an index that follows its inputs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import qkv
from qkv.runs.inference import search as module
from qkv.runs.inference.search_index import nearest_rows
from qkv.runs.run import Run
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

WORDS = [f"{first}{second}o" for first in "bdgklmnprst" for second in "aeiu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model whose text vector is the mean of random word vectors: its one block adds nothing."""
    folder = tmp_path_factory.mktemp("search")
    draw = random.Random(0)
    (folder / "words.txt").write_text(" ".join(draw.choices(WORDS, k=3000)))
    recipe = Recipe.parse(
        {
            "data": {"source": str(folder / "words.txt"), "tokenizer": "word_list"},
            "model": {
                "width": 24,
                "context_length": 16,
                "frontend": {"kind": "text", "positions": "none"},
                "blocks": [{"branches": ["attention(2)"], "norm": "none"}],
                "norm": "none",
            },
            "training": {"steps": 1, "batch_size": 1, "schedule": "constant", "validation": {"batches": 1}},
        }
    )
    run = qkv.train(recipe, folder / "run", on_event=lambda _: None)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            new = torch.randn(parameter.shape, generator=generator) if "table" in name else torch.zeros_like(parameter)
            parameter.data = new
    return run


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 7))) for _ in range(90)]
    lines.insert(10, "   ")
    lines[40] = lines[70]  # equal texts: the earlier one first
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.txt"


def by_loops(run: Run, lines: list[str], query: str, top: int) -> list[tuple[float, int]]:
    """(cosine, line from 1) of the nearest lines, in float64, from the word vectors alone."""
    table = next(p for name, p in run.model.named_parameters() if "table" in name).double().tolist()

    def vector(text: str) -> list[float]:
        ids = run.tokenizer.encode(text)
        return [sum(table[i][d] for i in ids) / len(ids) for d in range(len(table[0]))]

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5

    wanted = vector(query)
    found = [(cosine(wanted, vector(line)), i) for i, line in enumerate(lines, 1) if line.strip()]
    return sorted(found, key=lambda pair: (-round(pair[0], 9), pair[1]))[:top]


@pytest.mark.parametrize("at_once", [7, 1000])
def test_the_nearest_texts_are_those_of_loops(
    run: Run, texts: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_SCORES", 2 * at_once)
    lines = texts.read_text().splitlines()
    queries = [lines[70], f"{WORDS[3]} {WORDS[20]} {WORDS[31]}"]
    for query, hits in zip(queries, qkv.search(run, texts, queries, top=6), strict=True):
        expected = by_loops(run, lines, query, 6)
        assert [hit.line for hit in hits] == [line for _, line in expected]
        assert [hit.text for hit in hits] == [lines[line - 1] for _, line in expected]
        assert [hit.score for hit in hits] == pytest.approx([score for score, _ in expected], abs=2e-6)
    assert [hit.line for hit in qkv.search(run, texts, queries[0], top=2)[0]] == [41, 71]


def test_fewer_texts_than_asked_for_are_all_returned() -> None:
    vectors = np.eye(3, dtype=np.float32)
    scores, rows = nearest_rows(vectors, vectors[1:2], 5, 2)
    assert (scores.tolist(), rows.tolist()) == ([[1.0, 0.0, 0.0]], [[1, 0, 2]])


def test_the_index_is_kept_and_follows_file_model_and_settings(run: Run, texts: Path) -> None:
    built: list[int] = []

    def searched(**options: Any) -> list[int]:
        built.clear()
        hits = qkv.search(run, texts, WORDS[0], on_progress=lambda done, total: built.append(total), **options)[0]
        return [hit.line for hit in hits]

    first = searched()
    assert built == [90]
    assert searched() == first
    assert built == []
    searched(poolings=("max",))
    assert built == [90]
    texts.write_text(f"{WORDS[0]}\n" + texts.read_text())
    assert searched()[0] == 1
    assert built == [91]
    parameter = next(p for name, p in run.model.named_parameters() if "table" in name)
    before = parameter.data.clone()
    parameter.data = -2 * before.roll(1, 0)
    searched()
    assert built == [91]
    parameter.data = before
    index = max((texts.parent / "cache" / "search").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    searched()
    index.write_bytes(index.read_bytes()[:-4])  # cut off
    assert searched()[0] == 1
    assert built == [91]


@pytest.mark.parametrize("place", [-1, -90 * 24 * 4, -40 * 24 * 4 + 3], ids=["last", "first", "middle"])
def test_a_damaged_index_is_built_again(run: Run, texts: Path, place: int) -> None:
    built: list[int] = []

    def searched() -> list[qkv.Hit]:
        return qkv.search(run, texts, WORDS[:4], top=90, on_progress=lambda done, total: built.append(total))[0]

    first = searched()
    (index,) = (texts.parent / "cache" / "search").iterdir()
    whole = index.read_bytes()
    content = bytearray(whole)
    content[place] ^= 0x41
    index.write_bytes(content)
    assert searched() == first
    assert (built, index.read_bytes()) == ([90, 90], whole)
    index.write_bytes(whole[: -90 * 24 * 4] + bytes(90 * 24 * 4))  # its length, and no content
    assert searched() == first
    assert (built, index.read_bytes()) == ([90, 90, 90], whole)


def test_an_index_is_a_safetensors_file(run: Run, texts: Path) -> None:
    qkv.search(run, texts, WORDS[0])
    (index,) = (texts.parent / "cache" / "search").iterdir()
    vectors = load_file(index)["vectors"]
    torch.testing.assert_close(vectors.double().square().sum(1), torch.ones(90, dtype=torch.float64), rtol=1e-6, atol=0)


def test_an_interrupted_index_leaves_nothing(run: Run, texts: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qkv.search(run, texts, WORDS[0], on_progress=stop)
    assert list((texts.parent / "cache" / "search").iterdir()) == []


def test_the_column_of_a_table_is_searched(run: Run, texts: Path) -> None:
    table = texts.with_name("table.csv")
    table.write_text(f"number,note\n1,{WORDS[1]} {WORDS[2]}\n2,{WORDS[5]} {WORDS[6]}\n")
    hits = qkv.search(run, table, f"{WORDS[6]} {WORDS[5]}", top=1, column="note")[0]
    assert [(hit.text, hit.line) for hit in hits] == [(f"{WORDS[5]} {WORDS[6]}", 3)]
    with pytest.raises(UserError, match="has no column 'nte'"):
        qkv.search(run, table, WORDS[6], column="nte")
    with pytest.raises(UserError, match="one text per line"):
        qkv.search(run, texts, WORDS[6], column="note")


def test_what_cannot_be_searched(run: Run, texts: Path) -> None:
    texts.write_text("\n \n")
    with pytest.raises(UserError, match="holds nothing to search"):
        qkv.search(run, texts, WORDS[0])
    with pytest.raises(UserError, match="there is no file"):
        qkv.search(run, texts.with_name("none.txt"), WORDS[0])
    with pytest.raises(UserError, match="must be at least 1"):
        qkv.search(run, texts, WORDS[0], top=0)
