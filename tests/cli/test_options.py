"""Options of a command that one parameter holds: groups, and fields of a spec."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from qkv.cli.shared.options import SpecOption, SpecOptions, flag_of, with_options
from qkv.cli.shared.sampling import GENERATION
from qkv.spec.base import Seq, Spec
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


class Oven(Spec):
    """Settings of an oven."""

    top_heat: float = Field(default=0.5, le=1, description="share of heat from above; 1 - top_heat from below")
    minutes: int | None = Field(default=None, description="time")
    mode: Literal["fan", "grill"] = "fan"
    racks: Seq[Annotated[int, Field(ge=1)]] = ()


OVEN = SpecOptions(
    Oven,
    {
        "top_heat": "H",
        "minutes": SpecOption("N", "Minutes.", read=lambda value: value + 1),
        "mode": "fan|grill",
        "racks": SpecOption("R", flag="--rack"),
    },
)


class Tray(NamedTuple):
    """Options of a tray."""

    size: Annotated[int, typer.Option(help="Edge.")] = 3
    lined: Annotated[bool, typer.Option("--lined")] = False


def call(*words: str) -> tuple[dict[str, Any], str]:
    """Arguments that a command gets, and its help."""
    got: dict[str, Any] = {}

    def bake(
        name: str, *, tray: Tray, oven: Annotated[dict[str, Any], OVEN], quick: bool = False, **columns: str | None
    ) -> None:
        got.update(name=name, tray=tray, oven=oven, quick=quick, columns=columns)

    bake.__signature__ = inspect.signature(bake, eval_str=True, locals=locals())  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(with_options(bake, {"text": Annotated[str | None, typer.Option()], "size": None}))
    told = CliRunner().invoke(app, list(words))
    return got, told.output


def test_a_parameter_holds_what_its_options_say() -> None:
    got, _ = call(
        "cake", "--size", "5", "--rack", "1", "--rack", "2", "--minutes", "9", "--top-heat", "0.7", "--text", "a"
    )
    assert got["tray"] == Tray(5, lined=False)
    assert got["oven"] == {"racks": [1, 2], "minutes": 10, "top_heat": 0.7}
    assert (got["name"], got["quick"], got["columns"]) == ("cake", False, {"text": "a"})
    assert call("cake", "--lined")[0]["oven"] == {}
    assert call("cake", "--lined")[0]["tray"] == Tray(lined=True)


def test_help_is_the_description_with_placeholders() -> None:
    _, told = call("--help")
    shown = " ".join(told.split())
    assert "--top-heat H Share of heat from above; 1 - H from below." in shown
    assert "--minutes N Minutes. --mode fan|grill Mode. --rack R Racks. --quick" in shown
    assert shown.index("--size") < shown.index("--lined") < shown.index("--top-heat")


def test_an_error_names_the_option() -> None:
    with (
        pytest.raises(UserError, match=r"^--top-heat: 1\.5 given, but it should be less than or equal to 1$"),
        OVEN.errors(),
    ):
        Oven().changed(top_heat=1.5)
    with pytest.raises(UserError, match=r"^--rack: "), OVEN.errors():
        Oven().changed(racks=(0,))
    with pytest.raises(SpecError, match=r"^minutes: "), OVEN.only(["mode"], {}).errors():
        Oven().changed(minutes="soon")


def test_the_options_of_generation_are_its_own_fields() -> None:
    """All of them; the settings that forbid tokens come with published models only."""
    assert set(GENERATION.forms) == set(Generation.__annotations__)
    assert flag_of("top_k") == GENERATION.flag("top_k") == "--top-k"
    assert GENERATION.flag("stop_token_ids") == "--stop-token-id"
