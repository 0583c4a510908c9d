"""Readers of pages and pictures that know nothing of how they are made."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "link", "img"}
HOSTILE = (
    "</script><script>alert(1)</script> ]]> <!-- \" ' & \x00\x08\x1b[31m\x85\ud800\ufffe\u2028 \u202e‮ 中文 🙂 {{x}} "
    "&amp;"
)
"""Ends scripts and comments, breaks attributes, holds what XML forbids and what a terminal obeys."""


class Reader(HTMLParser):
    """Raises where an element is closed that is not the innermost open one; keeps elements, scripts and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> while {self.open} are open"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(t == tag and all(a.get(k.strip("_")) == v for k, v in attributes.items()) for t, a in self.elements)


def read_page(page: str) -> Reader:
    """The page as a balanced tree without a character that HTML calls an error."""
    assert page.startswith("<!DOCTYPE html>\n<html")
    return read_html(page)


def read_html(page: str) -> Reader:
    """A page or a part of one as a balanced tree without a character that HTML calls an error."""
    page.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]", page)
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def page_data(page: str) -> Any:
    """The JSON that the page carries, read strictly."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    reader = read_page(page)
    assert reader.count("script", type="application/json", id="data") == 1
    return json.loads(reader.scripts[0], parse_constant=refuse)


def read_svg(svg: str) -> ElementTree.Element:
    """The picture as XML, with a name, a description and only finite coordinates."""
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("role") == "img"
    assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]
    assert root[0].text
    assert root[1].text
    width, height = (float(v) for v in (root.get("viewBox") or "").split()[2:])
    for element in root.iter():
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"):
            value = float(element.get(name) or 0)
            assert -1000 < value <= max(width, height) + 1000, (element.tag, name, value)
    return root


def found(root: ElementTree.Element, tag: str, class_: str | None = None) -> list[ElementTree.Element]:
    """Elements by tag and one of their classes."""
    return [
        e
        for e in root.iter("{http://www.w3.org/2000/svg}" + tag)
        if class_ is None or class_ in (e.get("class") or "").split()
    ]


def words(root: ElementTree.Element) -> list[str]:
    """What stands in the picture's text elements."""
    return ["".join(e.itertext()) for e in found(root, "text")]


def coordinates(path: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of each stroke of a path."""
    strokes = (path.get("d") or "").split("M")[1:]
    return [[(float(x), float(y)) for x, y in (point.split(",") for point in stroke.split())] for stroke in strokes]
