"""Command ``qkv cost``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.api.models import find_model, names_published
from qkv.cli.shared.runs import Json
from qkv.costs.cost import PART_COLUMNS, Cost, part_rows, quantity_rows, table_title
from qkv.costs.levels import LEVEL_COLUMNS, level_costs, level_rows
from qkv.costs.measuring.machine import Machine, machine_file, store_machine, stored_machine
from qkv.models.families.presets import PRESETS
from qkv.report.figures import short, size
from qkv.report.table import print_table
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.costs.measuring.growth import GrowthCurve, GrowthPoint
    from qkv.costs.measuring.measure import Measurement

EXAMPLES = """\
qkv cost gpt3
qkv cost gpt2 --length 512 --batch-size 8 --precision bf16
qkv cost recipe.yaml model.num_layers=12 --check
qkv cost Qwen3-0.6B/config.json --length 4096
qkv cost exact.yaml linear.yaml --growth --longest 16384
qkv cost multi30k_transformer --length 20 --source-length 25
"""

_Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help=f"A recipe, a model, a run folder, a published folder or its config.json, or one of {', '.join(PRESETS)}.",
    ),
]
_BatchSize = Annotated[int | None, typer.Option(metavar="N", help="Batch size; default: the recipe's, or 1.")]
_Length = Annotated[int | None, typer.Option(metavar="N", help="Sequence length; default: the context length.")]
_SourceLength = Annotated[
    int | None, typer.Option(metavar="N", help="Input length of the encoder; default: its context length.")
]
_Precision = Annotated[
    str | None,
    typer.Option(
        metavar="fp32|bf16",
        help="Precision of matrix products; default: the one the recipe uses on this machine, or fp32.",
    ),
]
_Check = Annotated[bool, typer.Option("--check", help="Build the model, measure, and compare with the prediction.")]
_Growth = Annotated[
    bool,
    typer.Option("--growth", help="Measure time and memory at lengths 256, 512 …; several specs may be named."),
]
_Longest = Annotated[int, typer.Option(metavar="N", min=256, help="Maximum length for --growth.")]
_Probe = Annotated[bool, typer.Option("--probe", help="Measure this machine's speed, to estimate tokens per second.")]


def cost_command(
    spec: _Spec,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes, such as model.width=512.")
    ] = None,
    batch_size: _BatchSize = None,
    length: _Length = None,
    source_length: _SourceLength = None,
    precision: _Precision = None,
    check: _Check = False,
    probe: _Probe = False,
    growth: _Growth = False,
    longest: _Longest = 65536,
    as_json: Json = False,
) -> None:
    """Count parameters, FLOPs, memory, decoding state and time of a model, without building it."""
    if growth:
        _grow([spec, *(text for text in overrides or [] if "=" not in text)], overrides or [], longest, as_json)
        return
    model = find_model(spec, overrides or [])
    machine = _probed() if probe else stored_machine()
    counted = model.cost(batch_size, length, precision, source_length)
    checked = _checked(counted, machine) if check else []
    if as_json:
        typer.echo(json.dumps({"spec": spec, **_plain(counted, machine, checked)}))
        return
    _tell(spec, counted, machine, checked)


def _tell(spec: str, counted: Cost, machine: Machine | None, checked: list[Measurement]) -> None:
    """Print the tables of parts and quantities, of precisions for a published decoder, and of measurements, if any."""
    print_table(table_title(spec, counted), PART_COLUMNS, part_rows(counted))
    typer.echo()
    print_table("", ["quantity", "value"], quantity_rows(counted, machine))
    if levels := level_rows(counted):
        typer.echo()
        print_table("levels", LEVEL_COLUMNS, levels)
    if names_published(spec) and counted.writes:
        from qkv.costs.precisions import COLUMNS, fit_rows, fits

        typer.echo()
        print_table("running it on this machine", COLUMNS, fit_rows(fits(counted, machine)))
    if checked:
        typer.echo()
        print_table(
            "predicted and measured",
            ["quantity", "predicted", "measured", "error"],
            [_compared(row) for row in checked],
        )


def _grow(specs: list[str], overrides: Iterable[str], longest: int, as_json: bool) -> None:
    """Measure how time and memory of models grow with the length; print the points, and exponents beside the theory."""
    from qkv.costs.growth_tables import points_table, summary
    from qkv.costs.measuring.growth import growth_curve

    changes = [text for text in overrides if "=" in text]
    models = [find_model(name, changes).model for name in specs]
    curves: list[GrowthCurve] = []
    for name, model in zip(specs, models, strict=True):
        curves.append(growth_curve(name, model, longest, tell=lambda point, name=name: _print_point(name, point)))
        if not as_json:
            print_table(name, *points_table(curves[-1]))
            typer.echo()
    if as_json:
        typer.echo(json.dumps([asdict(curve) for curve in curves]))
        return
    print_table("exponents of the number N of positions", *summary(curves))


def _print_point(name: str, point: GrowthPoint) -> None:
    typer.echo(f"{name}: {point.length:,} positions, {point.seconds:.3g} s", err=True)


def _probed() -> Machine:
    from qkv.costs.measuring.probe import probe

    machine = probe()
    try:
        store_machine(machine)
    except OSError as error:
        raise UserError(
            f"the measurements of this machine cannot be stored in {machine_file()} ({error.strerror}); "
            "set QKV_CACHE to another folder"
        ) from None
    return machine


def _checked(counted: Cost, machine: Machine | None) -> list[Measurement]:
    from qkv.costs.counting.losses import summed_loss
    from qkv.costs.measuring.measure import Update, check
    from qkv.training.optim.optimisers import build_optimizer

    training = counted.training
    if counted.learned:
        raise UserError("--check measures full training only; leave out training.adapt and training.frozen")
    return check(
        counted,
        lambda model: Update(
            model, summed_loss, build_optimizer(training.optimizer, model), training.accumulate, counted.precision
        ),
        machine,
    )


def _compared(row: Measurement) -> tuple[str, str, str, str]:
    name = row.quantity if row.unit in ("", "B", "FLOP") else f"{row.quantity}, {row.unit}"
    return name, _value(row.predicted, row.unit), _value(row.measured, row.unit), f"{row.error:+.1%}"


def _value(value: float, unit: str) -> str:
    return size(value) if unit == "B" else short(value) if unit else f"{value:,.0f}"


def _plain(counted: Cost, machine: Machine | None, rows: list[Measurement]) -> dict[str, Any]:
    speed = asdict(counted.speed(machine)) if machine else None
    compared = [{**asdict(row), "error": row.error} for row in rows]
    levels = [level._asdict() for level in level_costs(counted)]
    plain = {**counted.to_dict(), **({"levels": levels} if levels else {})}
    return {**plain, "tokens_per_second": speed, **({"check": compared} if rows else {})}
