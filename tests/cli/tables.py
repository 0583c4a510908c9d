"""Tiny tables of examples, a rule in each that a small model can find."""

from __future__ import annotations

import json
import random
from pathlib import Path

NAMES, TOWNS, WORDS = ("Ann", "Bob", "Eva"), ("Paris", "Rome"), ("film", "plot", "actors", "scene")
GERMAN = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
NOTES = {"a": (0.1, 0.9, 0.8, 0.0), "b": (-0.9, -0.7, 0.1, 0.0)}


def write_tables(folder: Path, rows: int = 80) -> None:
    """A file for each verb of ``qkv train``."""
    draw = random.Random(0)
    reviews = [
        (f"{draw.choice(WORDS)} {mood} {draw.choice(WORDS)}", stars)
        for mood, stars in (("good", 5), ("bad", 1))
        for _ in range(rows // 2)
    ]
    (folder / "reviews.csv").write_text(
        "review,stars\n" + "".join(f"{text},{stars}\n" for text, stars in reviews) + "no stars\n"
    )
    topics = [[topic for topic in ("film", "plot") if topic in text] for text, _ in reviews]
    (folder / "topics.csv").write_text(
        "text,topics\n"
        + "".join(f"{text},{'; '.join(found)}\n" for (text, _), found in zip(reviews, topics, strict=True))
    )
    numbers = [[draw.randint(0, 5) for _ in range(3)] for _ in range(rows)]
    (folder / "prices.csv").write_text(
        "text,price\n" + "".join(f"{'a ' * a}{'b ' * b}x,{a + 10 * b}\n" for a, b, _ in numbers)
    )
    songs = [draw.choices("ab", k=draw.randint(1, 4)) for _ in range(rows)]
    (folder / "songs.jsonl").write_text(
        "".join(
            json.dumps({"series": [v for x in song for v in NOTES[x]], "text": "".join(song)}) + "\n" for song in songs
        )
    )
    counts = [draw.choices(list(GERMAN), k=draw.randint(1, 4)) for _ in range(rows)]
    (folder / "a.txt").write_text("".join(" ".join(line) + "\n" for line in counts))
    (folder / "b.txt").write_text("".join(" ".join(GERMAN[word] for word in line) + "\n" for line in counts))
    lived = [(draw.choice(NAMES), draw.choice(TOWNS)) for _ in range(rows)]
    (folder / "names.conll").write_text(
        "".join(f"{name} B-PER\nlives O\nin O\n{town} B-LOC\n\n" for name, town in lived)
    )
    summaries = [
        {"article": f"{name} went to {town}. It was far.", "summary": f"{name} in {town}"} for name, town in lived
    ]
    (folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in summaries))
    (folder / "squad.json").write_text(
        json.dumps({"version": "1.1", "data": [_article(name, town) for name, town in lived[: rows // 4]]})
    )


def _article(name: str, town: str) -> dict[str, object]:
    context = f"{name} lives in {town}."
    asked = [("Who lives there?", name), ("Where is it?", town)]
    return {
        "title": f"{name} {town}",
        "paragraphs": [
            {
                "context": context,
                "qas": [
                    {
                        "id": question,
                        "question": question,
                        "answers": [{"text": answer, "answer_start": context.index(answer)}],
                    }
                    for question, answer in asked
                ],
            }
        ],
    }
