"""Census of published families: a tiny random checkpoint of each, written by transformers, opened by qkv, compared.

    python benchmarks/families.py --variants 5 --write docs/families.md
    python benchmarks/families.py --kind causal --only llama qwen3

A kind is a task for which transformers registers model types. The reference is eager attention in fp32.

    equal      every form of input is within 1e-4 of the largest logit: whole rows, rows of two lengths, one step after
               a prefill
    wrong      some form is not
    refused    qkv raises ``UserError``, whose sentence says what the model would need
    crash      qkv raises another error
    flaky      two runs of transformers differ
    not built  there is no small checkpoint: a package is missing, a size does not fit, or it reads other inputs

Variants change one to four keys of a family's config at random.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import io
import json
import logging
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
import torch

import qkv
from family_checkpoints import (
    KINDS,
    TOLERANCE,
    Keys,
    Kind,
    Reference,
    add_processor,
    build,
    choices,
    difference,
    image_side,
    random_changes,
    reference,
)
from qkv.report.table import print_table
from side_by_side import parser, say_where, write_table

VERDICTS = ("equal", "wrong", "refused", "crash", "flaky", "not built")
TITLES = {
    "causal": "Causal language models",
    "masked": "Masked language models",
    "seq2seq": "Encoder–decoders",
    "image": "Image classifiers",
}
SMOKE = ("gpt2", "bert")


class TimeUp(BaseException):
    """The time limit of a checkpoint has passed."""


@dataclass
class Result:
    """Comparison of one checkpoint. sentence: why it is not equal. errors: largest difference of each form."""

    verdict: str
    sentence: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """Sentence, or the errors of all forms."""
        return self.sentence or ", ".join(f"{form} {error:.0e}" for form, error in self.errors.items())


@dataclass
class Family:
    """Result of a model type, and of its variants, each with the keys that differ."""

    result: Result
    variants: list[tuple[Keys, Result]] = field(default_factory=list)


def compare(kind: Kind, name: str, changes: Keys) -> Result:
    """Compare a checkpoint of a model type, whose config has ``changes``."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            model, config = build(kind, name, changes)
            theirs = reference(kind, model, config)
            model.save_pretrained(folder)
            add_processor(name, image_side(config), Path(folder))
        except Exception as error:
            sentence = " ".join(f"{type(error).__name__}: {error}".removeprefix("NotBuilt: ").split())
            return Result("not built", sentence[:200])
        if not torch.isfinite(theirs.logits).all():
            return Result("not built", "the logits of transformers are not finite")
        if difference(theirs.logits, model(**theirs.arguments).logits) > TOLERANCE:
            return Result("flaky")
        return _compare_folder(kind, theirs, folder)


def _compare_folder(kind: Kind, theirs: Reference, folder: str) -> Result:
    errors = dict[str, float]()
    try:
        model = qkv.load(folder).model
        for form, expected, result in kind.forms(theirs, model):
            errors[form] = float(f"{difference(expected, result):.1e}")
    except qkv.UserError as error:
        return Result("refused", str(error).replace(folder, "FOLDER")[:400])
    except Exception as error:
        return Result("crash", f"{type(error).__name__}: {str(error)[:200]}")
    equal = all(error <= TOLERANCE for error in errors.values())
    return Result("equal" if equal else "wrong", errors=errors, notes=theirs.notes)


def compare_within(seconds: int, kind: Kind, name: str, changes: Keys) -> Result:
    """``compare`` within a time limit, without what either library prints."""
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return compare(kind, name, changes)
    except TimeUp:
        return Result("not built", f"more than {seconds} s")
    finally:
        signal.alarm(0)
        gc.collect()


def variants(kind: Kind, name: str, options: argparse.Namespace) -> Iterator[tuple[Keys, Result]]:
    """Yield ``options.variants`` random variants that transformers runs and qkv opens, and those that qkv refuses.

    Of a variant that is not equal, only the keys that matter are kept. A single key that is refused is not drawn again.
    """
    generator, pool = random.Random(f"{options.seed} {name}"), dict(choices(kind, name))
    seen, opened = list[Keys](), 0
    for _ in range(8 * options.variants):
        if not pool or opened == options.variants:
            return
        changes = random_changes(generator, pool)
        changes, result = _reduced(kind, name, changes, options.limit)
        if result.verdict == "refused" and len(changes) == 1:
            ((key, now),) = changes.items()
            pool = {each: [other for other in few if (each, other) != (key, now)] for each, few in pool.items()}
            pool = {each: few for each, few in pool.items() if few}
        if result.verdict not in ("not built", "flaky") and changes not in seen:
            seen.append(changes)
            opened += result.verdict != "refused"
            yield changes, result


def _reduced(kind: Kind, name: str, changes: Keys, limit: int) -> tuple[Keys, Result]:
    """Compare a variant; leave out keys without which its verdict stays "wrong", "crash" or "refused"."""
    result = compare_within(limit, kind, name, changes)
    for key in list(changes) if result.verdict in ("wrong", "crash", "refused") else ():
        fewer = {other: changes[other] for other in changes if other != key}
        again = compare_within(limit, kind, name, fewer) if fewer else result
        if fewer and again.verdict == result.verdict:
            changes, result = fewer, again
    return changes, result


def take(options: argparse.Namespace) -> dict[str, dict[str, Family]]:
    """Compare the model types of ``options``, and print each."""
    families: dict[str, dict[str, Family]] = {kind: {} for kind in options.kind}
    for kind, rows in families.items():
        for name in sorted(name for name in KINDS[kind].names if name in (options.only or KINDS[kind].names)):
            row = rows[name] = Family(compare_within(options.limit, KINDS[kind], name, {}))
            print(f"{kind:8} {name:28} {row.result.verdict:9} {row.result.shown[:170]}", flush=True)
            for note in row.result.notes:
                print(f"     {note}")
            if row.result.verdict == "equal" and options.variants:
                row.variants = list(variants(KINDS[kind], name, options))
            for changes, result in row.variants:
                if result.verdict != "equal":
                    print(f"     {result.verdict:9} {changes}: {result.shown[:140]}", flush=True)
    return families


def summary(families: dict[str, dict[str, Family]]) -> list[list[str]]:
    """Rows of the table of verdicts: a row for each kind, and one for all variants."""
    counts = {TITLES[kind]: [row.result for row in rows.values()] for kind, rows in families.items()}
    counts["Variants"] = [each for rows in families.values() for row in rows.values() for _, each in row.variants]
    return [[title, *_counted(results), str(len(results))] for title, results in counts.items()]


def _counted(results: Sequence[Result]) -> list[str]:
    counts = collections.Counter(result.verdict for result in results)
    return [str(counts[verdict]) for verdict in VERDICTS]


def write(page: Path, families: dict[str, dict[str, Family]]) -> None:
    """Write the tables of ``families`` to ``page``."""
    columns = ["kind", *VERDICTS, "all"]
    write_table(page, "verdicts: families.py", columns, summary(families))
    for kind, rows in families.items():
        equal = [_equal_row(name, row) for name, row in rows.items() if row.result.verdict == "equal"]
        write_table(page, f"{kind} equal: families.py", ["model type", "largest error", "variants"], equal)
        other = [
            [f"`{name}`", row.result.verdict, _cell(row.result.shown)]
            for name, row in rows.items()
            if row.result.verdict != "equal"
        ]
        write_table(page, f"{kind} other: families.py", ["model type", "verdict", "why"], other)


def _equal_row(name: str, row: Family) -> list[str]:
    counts = collections.Counter(result.verdict for _, result in row.variants)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    return [f"`{name}`", f"{max(row.result.errors.values()):.0e}", listed]


def _cell(sentence: str) -> str:
    """Sentence as the cell of a Markdown table, without the list of all model types."""
    short = sentence.partition("; allowed:")[0].removeprefix("FOLDER/config.json: ")
    return short.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def main() -> None:
    """Take the census, print and write its tables."""
    options = parser(__doc__ or "")
    options.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    options.add_argument("--only", nargs="+", metavar="MODEL_TYPE")
    options.add_argument("--variants", type=int, default=0, metavar="N", help="variants of each equal family")
    options.add_argument("--seed", type=int, default=0, help="seed of the variants")
    options.add_argument("--limit", type=int, default=60, help="seconds for each checkpoint")
    options.add_argument("--write", type=Path, help="page whose tables are written")
    options.add_argument("--json", type=Path, help="file for all results")
    arguments = options.parse_args()
    if arguments.smoke:
        arguments.kind, arguments.only, arguments.variants = ["causal", "masked"], list(SMOKE), 1
    say_where("transformers")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _end)
    families = take(arguments)
    print_table("\nmodel types by verdict", ["kind", *VERDICTS, "all"], summary(families))
    if arguments.json:
        arguments.json.write_text(json.dumps(families, default=vars, indent=1), encoding="utf-8")
    if arguments.write:
        write(arguments.write, families)


def _end(*_: Any) -> None:
    raise TimeUp


if __name__ == "__main__":
    main()
