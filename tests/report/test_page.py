"""Pages are valid, self-contained, and cannot be broken by what they show."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.checks import HOSTILE, page_data, read_page

from qkv.report.charts.bars import BarChart
from qkv.report.charts.chart import LineChart
from qkv.report.charts.heatmap import HeatMap
from qkv.report.charts.series import Line
from qkv.report.markup import Markup, escape, script_json, tag, visible
from qkv.report.page import Page


def page_of(text: str) -> Page:
    """A page with ``text`` in every place that takes one."""
    page = Page(text)
    page.data[text] = {"deep": [text, math.nan, {text: text}]}
    page.header(text, text, "good")
    page.progress(1, 2, text)
    page.note(text, "danger")
    page.cards([(text, text, text)])
    with page.section(text):
        page.prose(text)
        page.table([text, text], [[text, 1], [text]])
        page.code(text)
        page.code(f"# {text}\nkey: {text}\n{text}", "yaml")
        with page.details(text, preview=text):
            page.sample(text)
        page.chart(LineChart(text, [Line(text, [1, 2], [1.0, math.nan])], text, text, events=[(1, text)]))
        page.charts([BarChart(text, [(text, 1.0)]), HeatMap(text, [[1.0]], [text], [text])])
    return page


@given(st.text(max_size=60) | st.text(st.characters(categories=["Cc", "Cs", "Cn", "Po"]), max_size=20))
def test_any_text_leaves_the_page_whole(text: str) -> None:
    reader = read_page(page_of(text).html())
    assert reader.count("script") == 2
    assert reader.count("svg") == 4
    page_data(page_of(text).html())


def test_hostile_text_stays_text() -> None:
    html = page_of(HOSTILE).html()
    reader = read_page(html)
    assert reader.count("script") == 2
    assert "alert(1)" not in "".join(reader.scripts[1:])
    assert "</script><script>alert(1)</script>" in reader.text
    assert "␀" in reader.text
    data = page_data(html)
    assert HOSTILE in data
    assert data[HOSTILE]["deep"][1] is None
    assert data["charts"][0]["lines"][0]["y"] == [1, None]


def test_nothing_is_loaded_from_elsewhere() -> None:
    html = page_of("x").html()
    reader = read_page(html)
    assert not [e for e in reader.elements if e[0] in ("link", "iframe", "object", "embed", "base", "form")]
    addresses = [a[name] for _, a in reader.elements for name in ("src", "href") if a.get(name)]
    assert all((address or "").startswith("data:") for address in addresses)
    assert "url(" not in html
    assert "@import" not in html


def test_the_policy_allows_the_page_its_own_script_alone() -> None:
    reader = read_page(page_of("x").html())
    policies = [a["content"] or "" for t, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(reader.scripts[1].encode()).digest()).decode()
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert f"script-src 'sha256-{digest}'" in policies[0]
    assert "unsafe" not in policies[0].split("script-src")[1]


def test_the_parts_of_a_page() -> None:
    page = Page("Title", refresh=30)
    page.header("Lead", "finished", "good")
    page.cards([("Loss", "1.88", "nats")])
    with page.section("Section"):
        page.prose("One.\n\nTwo.")
        page.table(["name", "count"], [["a", 1234], ["b", None]])
    reader = read_page(page.html())
    assert [a.get("content") for _, a in reader.elements if a.get("http-equiv") == "refresh"] == ["30"]
    assert (reader.count("h1"), reader.count("h2"), reader.count("section"), reader.count("p")) == (1, 1, 1, 3)
    assert [a.get("class") for t, a in reader.elements if t in ("td", "th")] == [None, "number"] * 3
    assert "1,234" in reader.text


def test_a_wide_chart_has_a_compact_form_and_a_small_one_does_not() -> None:
    page = Page("t")
    page.chart(LineChart("wide", [Line("a", [1, 2], [1.0, 2.0])]))
    page.charts([LineChart("small", [Line("a", [1, 2], [1.0, 2.0])], width=360, height=230)])
    reader = read_page(page.html())
    assert reader.count("svg") == 3
    assert [a.get("data-chart") for t, a in reader.elements if t == "figure"] == ["0", "1"]
    assert [c["title"] for c in page_data(page.html())["charts"]] == ["wide", "small"]


def _fail_inside(page: Page) -> None:
    with page.section("s"):
        page.prose("kept")
        raise ZeroDivisionError


def test_an_error_inside_a_section_keeps_what_was_added() -> None:
    page = Page("t")
    with pytest.raises(ZeroDivisionError):
        _fail_inside(page)
    assert "kept" in read_page(page.html()).text


def test_yaml_is_coloured_and_unchanged() -> None:
    text = "# said\nname: a\nblocks:\n  - kind: attention  # here\n    heads: 4\n  - [1, 2]\nurl: 'a: b'\n"
    page = Page("t")
    page.code(text, "yaml")
    reader = read_page(page.html())
    assert text in reader.text
    assert reader.count("span", class_="key") == 5
    assert reader.count("span", class_="comment") == 1


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("a\r\nb", "a\nb"),
        ("a\rb", "a␍b"),
        ("\x00\x1b\x7f", "␀␛␡"),
        ("\x85\ud800\ufffe", "���"),
        ("tab\tend\n", "tab\tend\n"),
        ("é🙂", "é🙂"),
    ],
)
def test_hidden_characters_become_visible(given_text: str, shown: str) -> None:
    assert visible(given_text) == shown


def test_markup_is_escaped_by_its_type() -> None:
    inner = tag("b", "<i>")
    assert inner == "<b>&lt;i&gt;</b>"
    assert (
        tag("p", inner, " & ", None, False, 0, class_="a'b", data_x=True, hidden=None)
        == '<p class="a&#39;b" data-x="data-x"><b>&lt;i&gt;</b> &amp; 0</p>'
    )
    assert escape(Markup("<br>")) == "<br>"
    assert tag("rect", x=1.0, y=0.25) == '<rect x="1" y="0.2"/>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_script_is_strict_and_cannot_end_it(data: Any) -> None:
    text = script_json(data)
    assert "<" not in text
    assert ">" not in text
    assert not re.search("NaN|Infinity", re.sub(r'"(\\.|[^"\\])*"', "", text))
    assert text.isascii()
