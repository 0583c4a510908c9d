"""Benchmark of length: language models trained on short rows, tested on longer ones, by scheme of positions and window.

    python benchmarks/length.py --out runs/length --write docs/length.md

The recipe char_shakespeare_fast in fp32, 128 characters a row, with another scheme of positions in every block. The
loss is over the whole validation split in consecutive rows of 128 to 1,024 characters, of all their positions (Press et
al. 2022). An interrupted benchmark goes on. ``--write`` replaces the table of a page, and draws its picture,
``pictures/length.svg`` beside it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import qkv
from qkv.models.build import build
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.figures import fixed
from qkv.report.table import print_table
from qkv.spec.files.overrides import override
from side_by_side import parser, say_where, write_table

TRAINED = 128
MUCH = 0.1
"""Difference of losses, in nats a character, above which a scheme is said to fail."""
_MIXER, _FRONTEND = "model.blocks.0.branches.0", "model.frontend.positions"


class Scheme(NamedTuple):
    """Scheme of positions: overrides of the recipe, and of the trained model in the test."""

    about: str
    changes: tuple[str, ...]
    tested: tuple[str, ...] = ()


def _attention(fields: str, *more: str) -> tuple[str, ...]:
    return f"{_MIXER}=attention(2, bias=false, qk_norm=true, {fields})", *more


SCHEMES = {
    "none": Scheme("none", _attention("relative=none")),
    "learned": Scheme("learned vectors", _attention("relative=none", f"{_FRONTEND}=learned")),
    "sinusoidal": Scheme("sinusoidal", _attention("relative=none", f"{_FRONTEND}=sinusoidal")),
    "rope": Scheme("RoPE", _attention("relative=rope")),
    "yarn": Scheme(
        "RoPE, YaRN by 8 in the test",
        _attention("relative=rope"),
        (f"{_MIXER}.relative.scaling={{kind: yarn, factor: 8, original_length: {TRAINED}}}",),
    ),
    "alibi": Scheme("ALiBi", _attention("relative=alibi")),
    "t5": Scheme("T5's buckets", _attention("relative=t5")),
    "shaw": Scheme("Shaw's vectors", _attention("relative=shaw")),
    "transformer_xl": Scheme("Transformer-XL", (f"{_MIXER}=relative_attention(2)",)),
    "window": Scheme("window of 32, none", _attention("relative=none, mask=causal & window(32)")),
    "window_rope": Scheme("window of 32, RoPE", _attention("relative=rope, mask=causal & window(32)")),
    "sink_rope": Scheme(
        "window of 32 and 4 sinks, RoPE", _attention("relative=rope, mask=causal & window(32, sinks=4)")
    ),
}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--only", nargs="+", choices=list(SCHEMES), default=list(SCHEMES), metavar="SCHEME")
    options.add_argument("--data", default="tinyshakespeare", help="text, a file or a known name")
    options.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("length"), help="folder of the runs")
    options.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    given = options.parse_args()
    if given.smoke:
        given.only, given.lengths = ["learned", "rope", "yarn"], [TRAINED, 2 * TRAINED]
    return given


def trained(scheme: Scheme, given: argparse.Namespace) -> Any:
    """Run of one scheme in ``--out``, trained or resumed; schemes that only differ in the test share it."""
    name = next(name for name, other in SCHEMES.items() if other.changes == scheme.changes)
    short = ("training.steps=2", "training.batch_size=2", "training.validation.batches=1") if given.smoke else ()
    changes = [f"data.source={given.data}", f"training.seed={given.seed}", "training.precision=fp32"]
    recipe = qkv.read_recipe("char_shakespeare_fast", [*changes, *scheme.changes, *short])
    return qkv.train(recipe, given.out / name)


def losses(scheme: Scheme, given: argparse.Namespace) -> list[float | None]:
    """Loss in nats per character at each length; None where the model refuses it."""
    run = trained(scheme, given)
    return [at_length(run, scheme, length, given.smoke) for length in given.lengths]


def at_length(run: Any, scheme: Scheme, length: int, smoke: bool) -> float | None:
    """Loss over the validation split in rows of ``length`` characters."""
    try:
        recipe = override(run.recipe, [*scheme.tested, f"model.context_length={length}"])
        model = run.model
        if scheme.tested:
            model = build(recipe.model)
            model.load_state_dict(run.model.state_dict())
        return qkv.evaluate(replace(run, recipe=recipe, model=model), batches=1 if smoke else None)["loss"]
    except qkv.UserError:
        return None


def rows_of(found: Mapping[str, Sequence[float | None]]) -> list[list[str]]:
    """Rows of the table: the loss at each length, and the difference between the longest and the shortest."""
    return [
        [
            SCHEMES[name].about,
            *("refused" if loss is None else fixed(loss) for loss in each),
            "–" if each[0] is None or each[-1] is None else f"{each[-1] - each[0]:+.3f}",
        ]
        for name, each in found.items()
    ]


def sentences(found: Mapping[str, Sequence[float | None]], lengths: Sequence[int]) -> str:
    """Schemes by what longer rows do to them."""
    first, last = f"{lengths[0]:,}", f"{lengths[-1]:,}"
    ends = {SCHEMES[name].about: (each[0], each[-1]) for name, each in found.items()}
    known = {name: (a, b) for name, (a, b) in ends.items() if a is not None and b is not None}
    groups = {
        f"Lower on {last} characters than on {first}": [name for name, (a, b) in known.items() if b < a],
        f"Higher by more than {MUCH}": [name for name, (a, b) in known.items() if b > a + MUCH],
        f"Refused at {last}": [name for name in ends if name not in known],
    }
    best = min(known, key=lambda name: known[name][1], default="")
    told = [f"{group}: {', '.join(names)}." for group, names in groups.items() if names]
    return " ".join([f"Lowest loss on {last} characters: {best}, {fixed(known[best][1])}.", *told] if best else told)


def chart(found: Mapping[str, Sequence[float | None]], lengths: Sequence[int]) -> LineChart:
    """Loss over the length of a row."""
    lines = [
        Line(SCHEMES[name].about, *zip(*known, strict=True), points=True)
        for name, each in found.items()
        if (known := [(n, loss) for n, loss in zip(lengths, each, strict=True) if loss and math.isfinite(loss)])
    ]
    return LineChart("Loss by length of the row", lines, "characters a row", "nats a character", x_log=True, height=480)


def main() -> None:
    """Train, test, print and write."""
    given = arguments()
    say_where()
    found: dict[str, list[float | None]] = {}
    for name in given.only:
        found[name] = losses(SCHEMES[name], given)
        print(SCHEMES[name].about, *("refused" if loss is None else fixed(loss) for loss in found[name]), flush=True)
    columns = ["positions", *(f"{length:,}" for length in given.lengths), "longest − shortest"]
    print_table("nats a character by length of the row", columns, rows_of(found))
    if given.write:
        write_table(
            given.write, "length: benchmarks/length.py", columns, rows_of(found), sentences(found, given.lengths)
        )
        picture = given.write.parent / "pictures" / "length.svg"
        picture.write_text(chart(found, given.lengths).svg() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
