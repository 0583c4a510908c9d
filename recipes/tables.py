"""Write the tables of recipes/README.md from the recipes: ``python recipes/tables.py``, with ``--check`` to compare only.

A figure is that of the recipe's ``result``, which ``qkv record`` wrote; one that was typed by hand says so. A table stands between two
comments and is replaced as a whole.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

import qkv
from qkv.report.figures import duration, fixed, short
from qkv.spec.recipe import Recipe
from qkv.spec.results import Typed

RECIPES = Path(__file__).resolve().parent
PAGE = RECIPES / "README.md"


class Row(NamedTuple):
    """One recipe: its name, what it is, and the figures that are shown, a name and a path in the result each."""

    name: str
    what: str
    figures: tuple[tuple[str, str], ...]


_LOSS = (("loss", "validation.loss"),)
_BLEU = (("BLEU of lower-cased words", "test.bleu_tokenized"), ("sacreBLEU", "test.bleu"))
_RIGHT = (("right", "test.accuracy"),)
_ANALOGIES = (("of 698 analogies", "validation.analogy_accuracy"),)

TABLES: dict[str, tuple[Row, ...]] = {
    "characters": (
        Row("char_shakespeare_cpu", "nanoGPT's CPU setting, sizes and budget, with rotary positions", _LOSS),
        Row("char_shakespeare_fast", "the same text in seconds: Muon, bf16, three layers", _LOSS),
        Row("all_mixers", "seven ways for positions to exchange information, one in each block", _LOSS),
    ),
    "tasks": (
        Row("multi30k_transformer", "German to English, Transformer", _BLEU),
        Row("multi30k_prefix", "the same by one stack with a prefix, 500 steps", _BLEU),
        Row("multi30k_gru_attention", "the same by two GRUs and additive attention, in the published form", _BLEU),
        Row("multi30k_convolution", "the same by convolutions", _BLEU),
        Row("multi30k_gru_fixed", "the same by two GRUs with one vector between them, in the published form", _BLEU),
        Row("sst2_classifier", "good or bad, from scratch", (("% right", "test.accuracy"),)),
        Row("sst2_pretrained", "the same by the Transformer of wikitext2_mlm", (("% right", "test.accuracy"),)),
        Row("squad_reader", "answers from a context, from scratch", (("F1", "test.f1"), ("exact match", "test.exact_match"))),
        Row("wnut17_tagger", "emerging entities tagged, from scratch", (("F1", "test.f1"),)),
        Row("wikitext2_mlm", "masked language model", (("pseudo-perplexity", "validation.pseudo_perplexity"),)),
        Row("wikitext2_span_corruption", "T5's objective, a short run", (("nats a token", "validation.loss"),)),
        Row("wikitext2_denoising", "BART's objective, a short run", (("nats a token", "validation.loss"),)),
        Row("wikitext2_permutation", "XLNet's objective, a short run", (("nats a token", "validation.loss"),)),
        Row("scitldr_summarizer", "one sentence for an abstract, from scratch", (("ROUGE-L", "test.rougeL"),)),
        Row("wikitext2_skip_gram", "vectors of 20,000 words of WikiText-2", _ANALOGIES),
        Row("wikitext2_cbow", "the same by the mean of a word's neighbours", _ANALOGIES),
        Row("sorting", "ten numbers from 0 to 99 put in order by an encoder", (("of rows without a mistake", "test.exact_match"),)),
        Row("recall_attention", "a symbol recalled over 1 to 128 tokens by attention", _RIGHT),
        Row("recall_lstm", "by an LSTM", _RIGHT),
        Row("recall_gru", "by a GRU", _RIGHT),
        Row("recall_rnn", "by Elman's network", _RIGHT),
        Row("recall_causal_convolution", "by convolutions that see 30 tokens back", _RIGHT),
    ),
}
_HEAD = "| recipe | what it is | figure | beside it | training | seeds | since |\n|---|---|---|---|---|---|---|\n"


def table(rows: tuple[Row, ...]) -> str:
    """Markdown: a line a recipe, and below it the figures of variants, which are typed."""
    recipes = {row.name: qkv.read_recipe(RECIPES / f"{row.name}.yaml") for row in rows}
    lines = [_line(row, recipes[row.name]) for row in rows]
    variants = [f"- {name}: {typed.metric}: {short(typed.value, 4)}" for name, recipe in recipes.items() for typed in _variants(recipe)]
    listed = "\nTyped by hand, of variants and short forms:\n\n" + "\n".join(variants) + "\n" if variants else ""
    return _HEAD + "\n".join(lines) + "\n" + listed


def _variants(recipe: Recipe) -> list[Typed]:
    return [typed for typed in recipe.typed if not typed.figure]


def _line(row: Row, recipe: Recipe) -> str:
    result = recipe.result if recipe.result and recipe.result.form == "full" else None
    typed = {entry.figure: entry for entry in recipe.typed if entry.figure}
    shown: list[str] = []
    for name, path in row.figures:
        figure = result and result.figure(path)
        if figure:
            spread = f", spread {fixed(figure.spread)}" if figure.spread is not None else ""
            shown.append(f"{fixed(figure.mean)} {name}{spread}")
        elif path in typed:
            shown.append(f"{fixed(typed[path].value)} {name}")
    first = next(iter(typed.values()), None)
    minutes = result.minutes if result else first and first.minutes
    seeds = result.seeds if result else first.seeds if first else ()
    since = f"recorded {result.date}" if result else f"typed {first.date}" if first else ""
    beside = "; ".join(fixed(other.value) for other in recipe.published if other.figure == row.figures[0][1])
    took = duration(60 * minutes) if minutes else ""
    cells = (f"[{row.name}]({row.name}.yaml)", row.what, "; ".join(shown), beside, took, ", ".join(map(str, seeds)), since)
    return f"| {' | '.join(cells)} |"


def written(page: str) -> str:
    """``page`` with every table anew. Raises ``ValueError`` if the two comments round one are not there."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- table {name}: make tables -->\n", f"<!-- end of table {name} -->\n"
        place = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}: {begin.strip()} … {end.strip()}")
        content = f"\n{table(rows)}\n"
        page = place.sub(lambda _, content=content: content, page)
    return page


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="The tables of recipes/README.md, from the recipes.")
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 if the page says something else")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if check and after != before:
        sys.stderr.write(f"{PAGE} is not what the recipes say; make tables writes it\n")
        return 1
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
