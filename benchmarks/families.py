"""Census of published families: a tiny random checkpoint of each, written by transformers, opened by qkv, compared.

    python benchmarks/families.py --variants 5 --write docs/families.md
    python benchmarks/families.py --kind causal --only llama qwen3
    python benchmarks/families.py --variants 5 --resume census.jsonl --seconds 90 --write docs/families.md

A kind is a task for which transformers registers model types. The reference is eager attention in fp32.

    equal      every form of input is within 1e-4 of the largest logit: whole rows, rows of two lengths, one step after
               a prefill; see family_sounds.py for models of sound, and family_images.py for images beside texts
    wrong      some form is not
    refused    qkv raises ``UserError``, whose sentence says what the model would need
    crash      qkv raises another error
    flaky      two runs of transformers differ
    not built  there is no small checkpoint: a package is missing, a size does not fit, or it reads other inputs; model
               types that qkv refuses by their names are refused

Variants change one to four keys of a family's config at random. ``--resume`` adds each model type to a file when it is
compared, so that the same command goes on where it was stopped; ``--seconds`` stops it, and writes what there is.
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
import time
from collections.abc import Container, Iterator, Sequence
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
from family_images import TEXT_OF_IMAGES
from family_sounds import TEXT_ALONE, answer
from qkv.interop.load import described, load_published
from qkv.report.table import print_table
from side_by_side import parser, say_where, write_table

VERDICTS = ("equal", "wrong", "refused", "crash", "flaky", "not built")
TITLES = {
    "causal": "Causal language models",
    "masked": "Masked language models",
    "seq2seq": "Encoder–decoders",
    "image": "Image classifiers",
    "pair": "Pairs of image and text",
    "image_text": "Texts about images",
    "ctc": "Recognition of speech by CTC",
    "speech": "Speech to text",
    "sound": "Classifiers of sounds",
    "encoder": "Encoders of sounds",
    "codec": "Codecs of sounds",
    "speaker": "Text to sound",
}
ALONE = {
    TEXT_ALONE: "an encoder of sound whose vectors stand among those of the tokens",
    TEXT_OF_IMAGES: "an encoder of images whose vectors stand among those of the tokens",
}
"""Form of models of which qkv opens the model of text alone -> what the whole model would need."""
SMOKE = ("gpt2", "bert", "wav2vec2", "dac")


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
            model.save_pretrained(folder)
            if kind.arguments is None:
                add_processor(name, image_side(config), Path(folder))
            theirs = reference(kind, model, config)
        except Exception as error:
            sentence = " ".join(f"{type(error).__name__}: {error}".removeprefix("NotBuilt: ").split())
            return _refusal(kind, folder) or _refused_by_name(name, Path(folder)) or Result("not built", sentence[:200])
        if not torch.isfinite(theirs.logits).all():
            return Result("not built", "the logits of transformers are not finite")
        if difference(theirs.logits, answer(model(**theirs.arguments))) > TOLERANCE:
            return Result("flaky")
        return _compare_folder(kind, theirs, folder)


def _model(kind: Kind, folder: str) -> Any:
    """Model of a folder, which needs no processor: a model of sounds or images is given processed inputs."""
    return load_published(folder).model if kind.named else qkv.load(folder).model


def _refusal(kind: Kind, folder: str) -> Result | None:
    """Result of a checkpoint that transformers does not run here, if it was written and qkv refuses it; else None."""
    try:
        if Path(folder, "config.json").exists():
            _model(kind, folder)
    except qkv.UserError as error:
        return Result("refused", str(error).replace(folder, "FOLDER")[:400])
    except Exception:
        return None
    return None


def _refused_by_name(name: str, folder: Path) -> Result | None:
    """Result of a model type without a small checkpoint, if qkv refuses it by its name; else None."""
    (folder / "config.json").write_text(json.dumps({"model_type": name}), encoding="utf-8")
    try:
        described(folder)
    except qkv.UserError as error:
        if "which qkv does not support" in str(error):
            return Result("refused", str(error).replace(str(folder), "FOLDER")[:400])
    return None


def _compare_folder(kind: Kind, theirs: Reference, folder: str) -> Result:
    errors = dict[str, float]()
    try:
        model = _model(kind, folder)
        for form, expected, result in kind.forms(theirs, model):
            errors[form] = float(f"{difference(expected, result):.1e}")
    except qkv.UserError as error:
        return Result("refused", str(error).replace(folder, "FOLDER")[:400])
    except Exception as error:
        return Result("crash", f"{type(error).__name__}: {str(error)[:200]}")
    for form, needed in ALONE.items():
        if list(errors) == [form]:
            return Result("refused", f"it needs: {needed}; its model of text alone differs by {errors[form]:.0e}")
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
    """Compare the model types of ``options``, print each, and add it to the file of ``options.resume``.

    Those that the file has from a run with as many variants and the same seed are read from it.
    """
    families: dict[str, dict[str, Family]] = {kind: {} for kind in options.kind}
    file, drawn = options.resume, {"variants": options.variants, "seed": options.seed}
    end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    compared = {} if file is None or not file.exists() else _compared(file, drawn)
    for kind, rows in families.items():
        for name in sorted(name for name in KINDS[kind].names if name in (options.only or KINDS[kind].names)):
            if (kind, name) in compared:
                rows[name] = compared[kind, name]
                continue
            if time.monotonic() > end:
                break
            rows[name] = _taken(KINDS[kind], kind, name, options)
            if file is not None:
                line = json.dumps({"kind": kind, "name": name, **drawn, "family": rows[name]}, default=vars)
                with file.open("a", encoding="utf-8") as opened:
                    opened.write(f"{line}\n")
    return families


def _compared(file: Path, drawn: Keys) -> dict[tuple[str, str], Family]:
    """Model types in a file of ``--resume`` that were compared with variants ``drawn`` alike, by kind and name."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {
        (line["kind"], line["name"]): Family(
            Result(**line["family"]["result"]),
            [(changes, Result(**result)) for changes, result in line["family"]["variants"]],
        )
        for line in lines
        if {key: line[key] for key in drawn} == drawn
    }


def _taken(kind: Kind, title: str, name: str, options: argparse.Namespace) -> Family:
    """Compare one model type and its variants, and print them."""
    row = Family(compare_within(options.limit, kind, name, {}))
    print(f"{title:8} {name:28} {row.result.verdict:9} {row.result.shown[:170]}", flush=True)
    for note in row.result.notes:
        print(f"     {note}")
    if row.result.verdict == "equal" and options.variants:
        row.variants = list(variants(kind, name, options))
    for changes, result in row.variants:
        if result.verdict != "equal":
            print(f"     {result.verdict:9} {changes}: {result.shown[:140]}", flush=True)
    return row


def summary(families: dict[str, dict[str, Family]]) -> list[list[str]]:
    """Rows of the table of verdicts: a row for each kind, and one for all variants."""
    counts = {TITLES[kind]: [row.result for row in rows.values()] for kind, rows in families.items()}
    counts["Variants"] = [each for rows in families.values() for row in rows.values() for _, each in row.variants]
    return [[title, *_counted(results), str(len(results))] for title, results in counts.items()]


def _counted(results: Sequence[Result]) -> list[str]:
    counts = collections.Counter(result.verdict for result in results)
    return [str(counts[verdict]) for verdict in VERDICTS]


def write(page: Path, families: dict[str, dict[str, Family]]) -> None:
    """Write the tables of ``families`` to ``page``, and its table of verdicts from all that it then holds.

    Rows of other model types and tables of other kinds stay as they are, so that a page may come from several runs.
    """
    for kind, rows in families.items():
        hears = ["forms"] if KINDS[kind].named else []
        equal = [_equal_row(name, row, hears) for name, row in rows.items() if row.result.verdict == "equal"]
        columns = ["model type", *hears, "largest error", "variants"]
        other = [
            [f"`{name}`", row.result.verdict, _cell(row.result.shown)]
            for name, row in rows.items()
            if row.result.verdict != "equal"
        ]
        equal, other = (
            _merged(page, f"{kind} {part}", kind, rows, new) for part, new in (("equal", equal), ("other", other))
        )
        write_table(page, f"{kind} equal: families.py", columns, equal)
        write_table(page, f"{kind} other: families.py", ["model type", "verdict", "why"], other)
    write_table(page, "verdicts: families.py", ["kind", *VERDICTS, "all"], _page_summary(page))


def _merged(page: Path, table: str, kind: str, compared: Container[str], new: list[list[str]]) -> list[list[str]]:
    """Rows ``new``, and those of a table of a page whose model types were not ``compared`` now."""
    kept = [
        row for row in _rows(page, table) if (name := row[0].strip("`")) in KINDS[kind].names and name not in compared
    ]
    return sorted([*kept, *new])


def _equal_row(name: str, row: Family, hears: Sequence[str]) -> list[str]:
    counts = collections.Counter(result.verdict for _, result in row.variants)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    forms = [", ".join(row.result.errors)] if hears else []
    return [f"`{name}`", *forms, f"{max(row.result.errors.values()):.0e}", listed]


def _page_summary(page: Path) -> list[list[str]]:
    """Rows of the table of verdicts, counted in the other tables of a page; see ``summary``."""
    totals, drawn = dict[str, collections.Counter[str]](), collections.Counter[str]()
    for kind, title in TITLES.items():
        equal, other = (_rows(page, f"{kind} {part}") for part in ("equal", "other"))
        totals[title] = collections.Counter([*("equal" for _ in equal), *(row[1] for row in other)])
        for row in equal:
            for each in filter(None, row[-1].split(", ")):
                count, _, verdict = each.partition(" ")
                drawn[verdict] += int(count)
    totals["Variants"] = drawn
    return [
        [title, *(str(counts[verdict]) for verdict in VERDICTS), str(counts.total())]
        for title, counts in totals.items()
    ]


def _rows(page: Path, name: str) -> list[list[str]]:
    """Rows of a table of a page, below its two first lines."""
    text = page.read_text(encoding="utf-8").partition(f"<!-- table {name}: families.py -->")[2]
    lines = [line for line in text.partition("<!-- end of table")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


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
    options.add_argument("--resume", type=Path, help="file of results, to which each is added")
    options.add_argument("--seconds", type=float, help="time after which no further model type is begun")
    options.add_argument("--json", type=Path, help="file for all results")
    arguments = options.parse_args()
    if arguments.smoke:
        arguments.kind, arguments.only, arguments.variants = ["causal", "masked", "ctc", "codec"], list(SMOKE), 1
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
