"""Answers of tasks over HTTP are those of ``qkv.predict``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.serving.conftest import Running, serving

import qkv
from qkv.data.records.images.pictures import as_uri
from qkv.data.records.sounds.sound_files import as_uri as sound_uri
from qkv.runs.run import Run

REVIEWS = [{"text": f"a {word} film {i}", "label": word} for i in range(8) for word in ("good", "bad")]
SHORT = ("training.steps=2", "training.batch_size=2", "training.validation.batches=1", "candidates={}")


def pictures() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    names = ("dark", "bright")
    return [
        {"image": rng.integers(0, 99, (8, 8, 3), np.uint8) + 100 * kind, "label": names[kind]}
        for _ in range(10)
        for kind in (0, 1)
    ]


def clips() -> list[dict[str, object]]:
    wave = np.sin(np.arange(1200)[:, None] * np.array([0.2, 1.5])).astype(np.float32) / 2
    return [
        {"sound": (wave[i:, kind], 8000), "label": ("low", "high")[kind]} for i in range(0, 100, 10) for kind in (0, 1)
    ]


def sales() -> list[dict[str, object]]:
    return [{"date": f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}", "amount": 100.0 + i % 7} for i in range(300)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder: Path = tmp_path_factory.mktemp("trained")

    def run(name: str, data: list[dict[str, object]], task: str, **options: object) -> Run:
        return qkv.train(data, task=task, out=folder / name, overrides=SHORT, on_event=lambda _: None, **options)  # type: ignore[arg-type]

    return {
        "reviews": run("reviews", REVIEWS, "classify"),
        "pictures": run("pictures", pictures(), "classify"),
        "clips": run("clips", clips(), "classify"),
    }


@pytest.fixture(scope="module")
def predicting(trained: dict[str, Run], runs: dict[str, Run]) -> Iterator[Running]:
    with serving({**trained, "text": runs["rope"], "translation": runs["translation"]}) as running:
        yield running


def asked(server: Running, **body: object) -> httpx.Response:
    return httpx.post(f"{server.url}/predict", json=body, timeout=60)


def test_labels_of_texts(predicting: Running, trained: dict[str, Run]) -> None:
    texts = ["a good film", "a bad film 3"] * 12
    found = asked(predicting, model="reviews", inputs=texts).json()["data"]
    expected = qkv.predict(trained["reviews"], texts)
    assert [each["answer"] for each in found] == [each["answer"] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_labels_of_images(predicting: Running, trained: dict[str, Run]) -> None:
    pixels = [row["image"] for row in pictures()[:3]]
    found = asked(predicting, model="pictures", inputs=[{"image": as_uri(each)} for each in pixels]).json()["data"]
    expected = qkv.predict(trained["pictures"], *[{"image": each} for each in pixels])
    assert [each["answer"] for each in found] == [each["answer"] for each in expected]


def test_labels_of_sounds(predicting: Running, trained: dict[str, Run]) -> None:
    sounds = [row["sound"] for row in clips()[:3]]
    found = asked(predicting, model="clips", inputs=[{"sound": sound_uri(each)} for each in sounds]).json()["data"]
    expected = qkv.predict(trained["clips"], *[{"sound": each} for each in sounds])
    assert [each["answer"] for each in found] == [each["answer"] for each in expected]


def test_a_translation(predicting: Running, runs: dict[str, Run]) -> None:
    found = asked(predicting, model="translation", inputs=["the fox", {"source": "a dog"}]).json()["data"]
    assert found == qkv.predict(runs["translation"], "the fox", {"source": "a dog"})


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (
            {"model": "pictures", "inputs": ["pyproject.toml"]},
            400,
            "'pyproject.toml' given; allowed: numbers",
        ),
        (
            {"model": "clips", "inputs": ["pyproject.toml"]},
            400,
            "or a sound as data:audio/wav;base64",
        ),
        ({"model": "clips", "inputs": ["data:audio/wav;base64,AAAA"]}, 400, "is no sound file that can be read"),
        ({"model": "pictures", "inputs": ["data:image/png;base64,AAAA"]}, 400, "image"),
        ({"model": "reviews", "inputs": [{"txt": "a"}]}, 400, "'text' is missing"),
        ({"model": "reviews", "inputs": [3]}, 400, "3 given; allowed: a text, or an object"),
        ({"model": "reviews", "inputs": []}, 400, "1 to 2,048"),
        ({"model": "text", "inputs": ["a"]}, 400, "the task 'next_token' of the model 'text' has no answer"),
        ({"model": "other", "inputs": ["a"]}, 404, "there is no model 'other'"),
    ],
)
def test_one_sentence_for_what_cannot_be_predicted(
    predicting: Running, body: dict[str, object], status: int, sentence: str
) -> None:
    answer = asked(predicting, **body)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_forecast_from_the_rows_of_a_table(tmp_path: Path) -> None:
    run = qkv.train(sales(), task="forecast", horizon=3, out=tmp_path / "run", overrides=SHORT, on_event=lambda _: None)
    with serving({"sales": run}) as server:
        found = asked(server, inputs=sales()).json()["data"]
    expected = qkv.predict(run, sales())
    assert [row["date"] for row in found] == [row["date"] for row in expected]
    assert [row["answer"] for row in found] == pytest.approx([row["answer"] for row in expected], rel=1e-5)
