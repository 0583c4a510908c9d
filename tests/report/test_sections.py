"""What an evaluation shows, drawn from its plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.report.checks import HOSTILE, page_data, read_page

from qkv.report.evaluation import evaluation_report, headline, rows, words
from qkv.report.page import Page
from qkv.report.sections import DRAWN, add_sections
from qkv.report.training import TrainingRun, training_report

SECTIONS: dict[str, dict[str, Any]] = {
    "confusion": {"labels": ["bad", "good", "so"], "counts": [[8, 2, 0], [1, 9, 0], [0, 0, 0]]},
    "examples": {"columns": ["text", "answer"], "rows": [["what a film", "good"], ["x" * 2000, "bad"]]},
    "heats": {"columns": ["model", "validation loss"], "rows": [["attention", "0.41"], ["convolution", "0.47"]]},
    "contestants": {"columns": ["model", "loss"], "rows": [["n-grams", "0.41"], ["Transformer", "0.47"]]},
    "tagged": {
        "sentences": [
            {
                "words": ["Ann", "Lee", "in", "Rome"],
                "tags": ["B-PER", "I-PER", "O", "O"],
                "truth": ["B-PER", "I-PER", "O", "B-LOC"],
            }
        ]
    },
    "alignment": {
        "source": ["ein", "Haus"],
        "target": ["a", "house", "."],
        "weights": [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]],
    },
    "curves": {
        "x": [1, 2, 4],
        "x_label": "distance",
        "lines": [{"name": "gru", "y": [1.0, 0.5, 0.1]}, {"name": "attention", "y": [1, 1, 1]}],
    },
    "effects": {"words": [["good", -2.5], ["but", 0.5], ["long", 0.0]], "column": "change"},
    "reliability": {
        "bins": [{"low": 80.0, "high": 86.7, "rows": 12, "confidence": 83.25, "accuracy": 75.0}],
        "before": [{"low": 93.3, "high": 100.0, "rows": 12, "confidence": 96.5, "accuracy": 75.0}],
    },
    "points": {"groups": [{"name": "a", "points": [[0.5, 1], [2, -1]]}, {"name": "b", "points": [[0, 0]]}]},
    "pictures": {
        "pictures": [
            {"source": "data:image/png;base64,AAAA", "caption": "a cat <5>"},
            {"source": "data:image/png;base64,AAAB", "caption": "seen", "heat": [[0.0, 1.0]], "covered": [1.0, 0.5]},
        ]
    },
    "retrieval": {
        "queries": [
            {
                "source": "data:image/png;base64,AAAA",
                "sound": None,
                "caption": "seen <5>",
                "candidates": [
                    {"source": None, "sound": None, "caption": "a cat <x>", "score": 0.5, "right": True},
                    {
                        "source": None,
                        "sound": "data:audio/wav;base64,UklGRg==",
                        "caption": "b",
                        "score": 0.25,
                        "right": False,
                    },
                ],
            }
        ]
    },
    "sounds": {
        "columns": 2,
        "sounds": [{"source": "data:audio/wav;base64,UklGRg==", "caption": "1: original <x>"}] * 2,
    },
    "bars": {"bars": [["PER", 80.5], ["LOC", 70.25]], "unit": "%"},
}


def drawn(*sections: dict[str, Any]) -> str:
    page = Page("evaluation")
    add_sections(page, sections)
    return page.html()


def section(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "title": f"A {kind}", **SECTIONS[kind], **changes}


def test_every_kind_is_tried() -> None:
    assert SECTIONS.keys() == DRAWN.keys()


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_section_is_a_page_of_its_own(kind: str) -> None:
    page = drawn(section(kind, note="A word on it."))
    reader = read_page(page)
    assert f"A {kind}" in reader.text
    assert "A word on it." in reader.text
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_an_unknown_kind_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        ValueError,
        match=r"a section of the kind 'pie' cannot be drawn; kinds: confusion, examples, pictures, retrieval",
    ):
        drawn({"kind": "pie", "title": "A pie"})


def test_a_confusion_matrix_has_counts_in_its_cells_and_shares_as_colours() -> None:
    page = drawn(section("confusion"))
    chart = page_data(page)["charts"][0]
    assert chart["values"] == [[0.8, 0.2, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]
    assert chart["written"] == [["8", "2", "0"], ["1", "9", "0"], ["0", "0", "0"]]
    text = read_page(page).text
    assert "bad, good: 2 (0.2)" in text
    # Recall 8/10, precision 8/9, F1 16/19 of the first class; of the last there is nothing to divide by.
    for figure in ("80.00", "88.89", "84.21", "90.00", "81.82"):
        assert figure in text


def test_many_classes_are_listed_by_their_most_frequent_mistakes() -> None:
    labels = [f"class {i}" for i in range(40)]
    counts = [[50 if i == j else 0 for j in range(40)] for i in range(40)]
    counts[3][7] = 11
    reader = read_page(drawn({"kind": "confusion", "title": "Many", "labels": labels, "counts": counts}))
    assert reader.count("image") == 1
    assert "Most frequent confusions" in reader.text
    assert "class 3class 711" in reader.text


def test_a_mistake_of_a_tag_shows_both() -> None:
    reader = read_page(drawn(section("tagged")))
    assert [a["title"] for _, a in reader.elements if (a.get("class") or "").startswith("word") and a.get("title")] == [
        "predicted O, true B-LOC"
    ]
    assert [a.get("class") for tag, a in reader.elements if tag == "b"] == ["t1", "t1", "plain", "plain"]
    assert reader.text.count("PER") == 2  # in the legend, and below the first word of the span alone


def test_words_are_coloured_by_the_sign_and_size_of_their_effect() -> None:
    spans = [a for tag, a in read_page(drawn(section("effects"))).elements if tag == "span" and a.get("title")]
    assert [a["title"] for a in spans] == ["-2.500", "+0.500", "+0.000"]
    styles = [str(a["style"]) for a in spans]
    assert [style.split("var(")[1].split(")")[0] for style in styles] == ["--s0", "--danger", "--danger"]
    assert [style.split("%")[0].split()[-1] for style in styles] == ["55", "11", "0"]


def test_words_without_truth_are_not_mistakes() -> None:
    made = {"words": ["He", "left"], "tags": ["PRON", "VERB"]}
    reader = read_page(drawn({"kind": "tagged", "title": "Tags", "sentences": [made]}))
    assert not [a for _, a in reader.elements if a.get("title")]
    assert "VERB" in reader.text


def test_nothing_that_is_shown_breaks_the_page() -> None:
    hostile = [
        section("confusion", labels=[HOSTILE, "b", "c"]),
        section("examples", columns=[HOSTILE, "b"], rows=[[HOSTILE, None]]),
        section("tagged", sentences=[{"words": [HOSTILE], "tags": [HOSTILE], "truth": ["O"]}]),
        section("alignment", source=[HOSTILE, "b"]),
        section("effects", words=[[HOSTILE, -1.0]], column=HOSTILE),
        section("bars", bars=[[HOSTILE, float("nan")]]),
    ]
    reader = read_page(drawn(*hostile))
    assert len(reader.scripts) == 2
    json.loads(reader.scripts[0])


SPLITS = {
    "validation": {
        "figures": {"loss": 0.5, "accuracy": 81.0, "macro_f1": 80.0, "targets": 10},
        "sections": [],
        "notes": ["Of 2018."],
    },
    "test": {
        "figures": {"loss": 0.6, "accuracy": 79.0, "rougeL": 3.0, "targets": 20},
        "sections": [section("bars")],
        "notes": ["Of 2018."],
    },
}


def test_the_figures_of_all_splits_stand_in_one_table() -> None:
    assert rows(SPLITS) == [
        ["loss", 0.5, 0.6],
        ["accuracy", 81.0, 79.0],
        ["macro F1", 80.0, None],
        ["targets", 10, 20],
        ["ROUGE-L", None, 3.0],
    ]
    assert words("bits_per_character") == "bits per character"


def test_the_test_part_is_what_counts() -> None:
    assert headline(SPLITS) == [("Accuracy, test", "79.00", "validation 81.00"), ("ROUGE-L, test", "3.000", "")]
    page = evaluation_report("runs/a", "A lead.", SPLITS, 7)
    text = read_page(page).text
    for shown in ("runs/a", "A lead.", "step 7", "the validation and the test splits", "A bars"):
        assert shown in text
    assert text.count("Of 2018.") == 1
    assert page_data(page)["evaluation"]["test"]["accuracy"] == 79.0


STARS = [
    {
        "step": i,
        "loss": 1 / i,
        "val_loss": 1 / i,
        "val_accuracy": 10.0 * i,
        "tokens_per_second": 50.0,
        "time": 1.0 * i,
    }
    for i in range(1, 9)
]
"""Metrics of eight steps of a run that rates examples."""


def test_the_report_of_a_run_speaks_its_tasks_language() -> None:
    run = TrainingRun(
        "stars",
        metrics=STARS,
        loss_unit="nats an example",
        usage=("predict", "qkv predict runs/stars"),
        folder="runs/stars",
    )
    text = read_page(training_report(run)).text
    for shown in (
        "nats an example",
        "Accuracy",
        "80.00",
        "on the validation split",
        "Examples per second",
        "qkv predict runs/stars",
    ):
        assert shown in text
    assert "token" not in text.lower()
    assert "Perplexity" not in text
    assert "Evaluation" not in text
    evaluated = TrainingRun(
        "stars", metrics=STARS, loss_unit="nats an example", best="accuracy", evaluation={"step": 7, "splits": SPLITS}
    )
    found = read_page(training_report(evaluated)).text
    for shown in (
        "79.00",
        "Accuracy, test",
        "validation 81.00",
        "Weights of step 7, which had the highest validation accuracy, evaluated on all",
    ):
        assert shown in found
    assert "lowest validation loss" not in found
    # The loss beside them is that of the same weights, not of the last ones.
    assert "Loss, validation0.1429" in "".join(found.split("\n"))
