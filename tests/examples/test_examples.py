"""Every example runs as a reader would run it, warnings being errors, and prints what its text promises."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

PRINTS: dict[str, tuple[str, ...]] = {
    "worked_attention": (
        "scores                0.30  0.96  0.10  0.00  0.30  0.20",
        "scores / √4           0.15  0.48  0.05  0.00  0.15  0.10",
        "weights               0.16  0.23  0.15  0.14  0.16  0.16",
        "output, rounded       0.223  0.135  0.237  0.574",
        "output                0.221  0.133  0.233  0.576",
        "chasing · cat = 26.05, chasing · mouse = -4.50",
        "33,554,432 bytes",
    ),
    "positions": (
        "PE(p) to PE(p + 3) for p = 0, 7, 100",
        "alibi: slopes of 8 heads: ['1/2', '1/4', '1/8', '1/16', '1/32', '1/64', '1/128', '1/256']",
        "shuffled words give the same outputs in shuffled order",
    ),
    "masks": (
        "■ ■ · · · · · ■ ■ ■ ■ ·",
        "causal & window(4): causal True, reach 4",
        "causal | prefix(5): causal False",
        "weights of a query without visible keys: [0.0, 0.0, 0.0]",
        "outputs of both queries: [0.0, 1.0]",
    ),
    "dictionary": (
        "sharpness 1",
        "sharpness 16",
        "values    chat 0.000  chien 1.000  tapis 0.000  lune 0.000",
        "no such key chat 0.250  chien 0.250  tapis 0.250  lune 0.000",
    ),
    "your_own_mixer": ("'leaky_mean', 'attention', 'feed_forward'", "step 2: loss", "the same outputs as 33 at once"),
    "your_own_signal": (
        "parameters",
        "labels.json, metrics.jsonl, model.safetensors, parts.json, processors.json",
        "120 steps, accuracy",
        "line: line",
    ),
    "two_signals": (
        "parts.json, processors.json, report.html, spec.yaml, tokenizer.json",
        "perplexity of an answer's tokens 1.0",
        "100 of 100 new questions are answered right",
    ),
    "your_own_family": ("House MoE: 47,520 parameters", "largest difference of logits: 0.0e+00"),
    "char_model": ("spec.yaml, tokenizer.json", "The bat hung from the beam and looked at the hat."),
    "state": (
        "positions seen: [6]",
        "after two are kept: [7, 7]",
        "rewound to 5 and read one again: [6]",
        "ragged rows: [6, 3]",
        "102,400 bytes after 200 positions",
        "16,384 bytes after 200 positions",
    ),
}
"""Parts of what each prints, in order."""


def test_every_example_says_what_it_prints() -> None:
    assert {path.stem for path in EXAMPLES} == PRINTS.keys()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for part in PRINTS[example.stem]:
        assert part in rest, (
            f"{example.name} should print {part!r} after what came before it, but prints\n{done.stdout}"
        )
        rest = rest.split(part, 1)[1]
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_one_short_page(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(text))
    assert text.count("\n") < (
        180 if example.stem in ("your_own_signal", "two_signals", "your_own_family") else 100
    )  # a front end, its task and their data; configs and names in both directions
    assert about is not None
    assert f"python examples/{example.name}" in about
