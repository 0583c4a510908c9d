"""Pictures of the documentation: the files are those that the program draws, and they show what the parts compute."""

from __future__ import annotations

import math
import re
from itertools import zip_longest

import pytest
from making.draw import PICTURES
from making.pictures.distance import HEAD, scores
from making.pictures.masks import MASKS, visible
from making.pictures.orders import graph, stream
from making.pictures.report import drawn, headings
from making.pictures.sheet import NARROW, WIDE
from making.pictures.spreadsheet import NAMES
from making.pictures.states import curves
from tests.docs.blocks import ROOT

from qkv.report.training import TrainingRun, training_report

FOLDER = ROOT / "docs" / "pictures"
MEASURED = ("growth", "length")
"""Pictures that benchmarks draw of their results."""


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
"""A number with a fraction; integers, names and colours have to be equal."""


def differences(one: str, other: str) -> list[tuple[str, str]]:
    """What differs between two pictures: what is no number, and numbers more than by one in the last digit written.

    Processors add in different orders, which can turn the last digit of a rounded number.
    """
    if NUMBER.split(one) != NUMBER.split(other):
        return [(a, b) for a, b in zip_longest(NUMBER.split(one), NUMBER.split(other), fillvalue="") if a != b]
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return [(a, b) for a, b in pairs if abs(float(a) - float(b)) > max(map(last_digit, (a, b)))]


def last_digit(number: str) -> float:
    """1.01 in the place of the last digit written, at least of the seventh of those that count: fp32 has no more."""
    digits, _, exponent = number.partition("e")
    place = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return 1.01 * max(place, 1e-7 * abs(float(number)))


@pytest.mark.parametrize("name", PICTURES)
def test_the_file_is_what_the_program_draws(name: str) -> None:
    for file, width in ((f"{name}.svg", WIDE), (f"{name}.narrow.svg", NARROW)):
        found = differences((FOLDER / file).read_text(encoding="utf-8"), PICTURES[name](width).svg())
        assert not found, f"make pictures draws {file} anew"


def test_pictures_are_compared_by_numbers() -> None:
    drawn = '<path d="M1.0 20.3L-4.5 8" stroke="#1c65eb" class="s0" data-y="0.24804595200024407"/>'
    for same in (drawn, drawn.replace("20.3", "20.2"), drawn.replace("4407", "9407"), drawn.replace("-4.5", "-4.6")):
        assert differences(drawn, same) == []
    for change in (("20.3", "20.5"), ("-4.5", "4.5"), ('8"', '9"'), ("s0", "s1"), ("65eb", "65ec"), ("0.24", "0.25")):
        assert differences(drawn, drawn.replace(*change)), change
    assert differences(drawn, drawn.replace(" 8", ""))


def test_every_picture_is_shown_with_a_text_alternative() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = {
        name: alt
        for page in pages
        for alt, name in re.findall(r"!\[([^\]]*)\]\([./\w]*pictures/(\w+)\.svg\)", page.read_text("utf-8"))
    }
    assert set(shown) == {*PICTURES, *NAMES, *MEASURED, "report"}
    assert all(len(alt) > 30 for alt in shown.values())
    for name in shown:
        assert re.search(r'<svg [^>]*aria-label="[^"]{40,}"', (FOLDER / f"{name}.svg").read_text("utf-8"))


def test_masks_show_what_their_definitions_say() -> None:
    by_hand = {
        "causal & window(4, sinks=2)": lambda i, j: j <= i and (i - j < 4 or j < 2),
        "causal | prefix(5)": lambda i, j: j <= i or j < 5,
        "causal & blocks(4)": lambda i, j: j <= i and i // 4 == j // 4,
    }
    assert by_hand.keys() <= {expression for expression, _ in MASKS}
    for expression, rule in by_hand.items():
        assert visible(expression) == [[rule(i, j) for j in range(12)] for i in range(12)]


def test_scores_over_distance_are_those_of_the_formulas() -> None:
    rope, alibi = scores("rope", 1)[0].tolist(), scores("alibi", 8)
    for distance in (0, 1, 17, 128):
        angles = [distance * 10000 ** (-2 * i / HEAD) for i in range(HEAD // 2)]
        assert rope[distance] == pytest.approx(math.fsum(map(math.cos, angles)) / len(angles), abs=1e-9)
        assert alibi[2, distance].item() == pytest.approx(-distance / 8, abs=1e-9)


def test_the_graph_of_a_block_follows_its_order() -> None:
    assert [node.name for node in graph("post")] == ["x", "attention", "+", "norm", "feed-forward", "+", "norm"]
    assert [node.name for node in reversed(stream(graph("sandwich")))] == ["x", "+", "+"]
    x, norm, *_ = parallel = graph("parallel")
    assert [node.name for node in parallel if norm in node.reads] == ["attention", "feed-forward"]
    assert norm.reads == [x]


def test_every_causal_mixer_has_a_curve() -> None:
    names = [name for group in curves().values() for name in group]
    assert {"attention", "linear_attention", "gru", "lstm", "causal_convolution"} <= set(names)
    attention = next(values for values, group in curves().items() if "attention" in group)
    assert attention[10] == 2 * 1024 * 512 * 4


def test_the_tour_shows_every_part_of_a_report() -> None:
    rows = [
        {"step": s, "loss": 3.0 / s, "lr": 0.1, "grad_norm": 1.0, "val_loss": 2.0, "sample": "and so on"}
        for s in range(1, 9)
    ]
    run = TrainingRun("demo", "Short.", rows, "a: 1", [("training time", "3 s")], {"python": "3"}, folder="runs/demo")
    html = training_report(run)
    committed = (FOLDER / "report.svg").read_text("utf-8")
    assert len(headings(html)) > 5
    for heading in headings(html):
        assert f">{heading}</text>" in drawn(html, WIDE).svg()
        assert f">{heading}</text>" in committed, "make pictures draws the report anew"
