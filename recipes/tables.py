"""Generate the tables of recipes/README.md from the recipes: ``python recipes/tables.py``; ``--check`` only compares.

Results come from the key ``result``, written by ``qkv record``, or from ``typed``, which is marked. Each table stands
between two comments and is replaced as a whole.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import qkv
from pages import placed, settled
from qkv.report.figures import duration, fixed, short
from qkv.spec.files.shipped import shipped
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.results import Typed

FOLDER = "../src/qkv/recipes"
"""Folder of the recipe files, seen from the page."""
PAGE = Path(__file__).resolve().parent / "README.md"


class Row(NamedTuple):
    """One recipe: name, description, and labels of the metrics that it shows."""

    name: str
    what: str
    labels: tuple[str, ...]


_LOSS = ("loss",)
_BLEU = ("tokenised BLEU", "sacreBLEU")
_RIGHT = ("accuracy",)
_ANALOGIES = ("accuracy on 698 analogies",)

TABLES: dict[str, tuple[Row, ...]] = {
    "characters": (
        Row("char_shakespeare_cpu", "nanoGPT's CPU setting with rotary positions", _LOSS),
        Row("char_shakespeare_fast", "fast variant: three layers, Muon, bf16", _LOSS),
        Row("all_mixers", "seven mixers, one per block", _LOSS),
    ),
    "tasks": (
        Row("multi30k_transformer", "German to English, Transformer", _BLEU),
        Row("multi30k_prefix", "… with a prefix decoder, 500 steps", _BLEU),
        Row("multi30k_gru_attention", "… with two GRUs and additive attention, published form", _BLEU),
        Row("multi30k_convolution", "… with convolutions", _BLEU),
        Row("multi30k_gru_fixed", "… with two GRUs and a fixed context vector, published form", _BLEU),
        Row("sst2_classifier", "sentiment classification, from scratch", ("% accuracy",)),
        Row("sst2_pretrained", "… fine-tuned from wikitext2_mlm", ("% accuracy",)),
        Row(
            "squad_reader",
            "extractive question answering, from scratch",
            ("F1", "exact match"),
        ),
        Row("wnut17_tagger", "tagging of emerging entities, from scratch", ("F1",)),
        Row("fsdd_digits", "classification of spoken digits", ("% accuracy",)),
        Row("etth1_patches", "forecasting ETTh1 by 96 steps, patches and DLinear", ("MSE", "MAE")),
        Row("ettm1_patches", "… ETTm1", ("MSE", "MAE")),
        Row("cora_nodes", "classification of papers in a citation graph", ("% accuracy",)),
        Row("fashion_mnist", "classification of images of garments, attention behind a stem", ("% accuracy",)),
        Row("fashion_mnist_vit", "… a vision transformer", ("% accuracy",)),
        Row("fashion_mnist_mixer", "… an MLP-Mixer", ("% accuracy",)),
        Row("fashion_mnist_vq", "images as 7 × 7 codes of an autoencoder", ("MSE", "perplexity of the codes")),
        Row("fashion_mnist_codes", "… generation of the codes by label", ("nats per code",)),
        Row("fashion_mnist_patches", "… generation from patches of pixels by label", ("nats per value",)),
        Row("moving_garments", "direction in which a garment moves, tubelets", ("% accuracy",)),
        Row("wikitext2_mlm", "masked language model", ("pseudo-perplexity",)),
        Row("wikitext2_span_corruption", "T5's objective, a short run", ("nats per token",)),
        Row("wikitext2_denoising", "BART's objective, a short run", ("nats per token",)),
        Row("wikitext2_permutation", "XLNet's objective, a short run", ("nats per token",)),
        Row("scitldr_summarizer", "one-sentence summaries of abstracts, from scratch", ("ROUGE-L",)),
        Row("wikitext2_skip_gram", "skip-gram vectors of 20,000 words", _ANALOGIES),
        Row("wikitext2_cbow", "CBOW vectors of 20,000 words", _ANALOGIES),
        Row("sorting", "sorting ten numbers from 0 to 99 with an encoder", ("of rows correct",)),
        Row("subleq", "one instruction of SUBLEQ on 8 cells, a looped encoder", ("of rows correct",)),
        Row("recall_attention", "delayed recall over 1 to 128 tokens with attention", _RIGHT),
        Row("recall_lstm", "… with an LSTM", _RIGHT),
        Row("recall_gru", "… with a GRU", _RIGHT),
        Row("recall_rnn", "… with Elman's network", _RIGHT),
        Row("recall_causal_convolution", "… with convolutions of 30 tokens receptive field", _RIGHT),
        Row("recall_recurrent_memory", "… with attention to segments of 16 tokens and a recurrent memory", _RIGHT),
        Row("associative_recall", "values of 2 to 32 keys, attention behind a convolution", _RIGHT),
        Row("copying", "copying of 8 to 64 symbols, attention behind a convolution", _RIGHT),
    ),
}
_HEAD = "| recipe | description | result | reference | training | seeds | date |\n|---|---|---|---|---|---|---|\n"


def table(rows: tuple[Row, ...]) -> str:
    """Markdown table with one line per recipe, followed by the typed results of variants."""
    recipes = {row.name: qkv.read_recipe(shipped()[row.name]) for row in rows}
    lines = [_line(row, recipes[row.name]) for row in rows]
    variants = [
        f"- {name}: {typed.metric}: {short(typed.value, 4)}"
        for name, recipe in recipes.items()
        for typed in _variants(recipe)
    ]
    listed = "\nEntered by hand, for variants and short forms:\n\n" + "\n".join(variants) + "\n" if variants else ""
    return _HEAD + "\n".join(lines) + "\n" + listed


def _variants(recipe: Recipe) -> list[Typed]:
    return [typed for typed in recipe.typed if not typed.figure]


def _line(row: Row, recipe: Recipe) -> str:
    reached = recipe.reached
    shown: list[str] = []
    for path, value, spread in reached.figures if reached else ():
        label = row.labels[recipe.shown.index(path)]
        beside = f", spread {fixed(spread)}" if spread is not None and reached and not reached.typed else ""
        shown.append(f"{fixed(value)} {label}{beside}")
    cells = (
        f"[{row.name}]({FOLDER}/{row.name}.yaml)",
        row.what,
        "; ".join(shown),
        "; ".join(fixed(other.value) for other in recipe.published if other.figure == recipe.shown[0]),
        duration(60 * reached.minutes) if reached and reached.minutes else "",
        ", ".join(map(str, reached.seeds)) if reached else "",
        f"{'typed' if reached.typed else 'recorded'} {reached.date}" if reached else "",
    )
    return f"| {' | '.join(cells)} |"


def written(page: str) -> str:
    """``page`` with all tables regenerated. Raises ``ValueError`` if the comments around a table are missing."""
    for name, rows in TABLES.items():
        page = placed(page, f"<!-- table {name}: make tables -->", table(rows), f"<!-- end of table {name} -->")
    return page


def main() -> int:
    """Write the page, or compare it with ``--check``."""
    parser = argparse.ArgumentParser(description="Generate the tables of recipes/README.md from the recipes.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page differs")
    check = parser.parse_args().check
    return settled(PAGE, written(PAGE.read_text(encoding="utf-8")), check, "the recipes")


if __name__ == "__main__":
    sys.exit(main())
